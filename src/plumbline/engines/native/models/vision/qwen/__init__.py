"""Read images of any size in squares of patches, as Qwen2-VL to Qwen 3.5 do."""

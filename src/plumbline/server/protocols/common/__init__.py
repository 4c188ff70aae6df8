"""Read and write what several APIs share: sampling fields, tool choice, output formats, ids, logprobs, usage."""

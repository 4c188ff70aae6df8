"""Use the command `llm` with a model of its configuration file."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = os.environ["PLUMBLINE_MODEL"]

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(
        f"- model_id: pocket\n  model_name: {MODEL}\n  api_base: {os.environ['OPENAI_BASE_URL']}\n"
        "  api_key_name: pocket\n  supports_schema: true\n"
    )
    Path(folder, "keys.json").write_text(json.dumps({"pocket": os.environ["OPENAI_API_KEY"]}))
    variables = {**os.environ, "LLM_USER_PATH": folder}

    def llm(*arguments: str) -> str:
        """Run the command."""
        command = [str(Path(sys.executable).parent / "llm"), *arguments]
        return subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout

    assert llm("prompt", "-m", "pocket", "Hello, I am Ada.", "-o", "max_tokens", "30").strip()
    print("   prompt, streamed", flush=True)
    assert llm("prompt", "-m", "pocket", "--no-stream", "Hello!", "-o", "max_tokens", "30").strip()
    print("   prompt", flush=True)
    assert llm("prompt", "-c", "Who am I?", "-o", "max_tokens", "30").strip()
    print("   a conversation", flush=True)
    schema = llm("prompt", "-m", "pocket", "Where?", "--schema", "city, days int", "-o", "max_tokens", "300")
    assert schema.strip().startswith("{")
    print("   a schema", flush=True)

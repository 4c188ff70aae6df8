"""Define the scenarios and checks, by part of the API. Importing this package registers all of them.

The order of these imports is the order in which scenarios run and are listed.
"""

# isort: off
import plumbline_conformance.checks.capabilities  # scenarios name the capabilities that they need
import plumbline_conformance.checks.http.errors
import plumbline_conformance.checks.chat.basics
import plumbline_conformance.checks.chat.forced_tools
import plumbline_conformance.checks.chat.effects
import plumbline_conformance.checks.chat.structured_output
import plumbline_conformance.checks.chat.logprobs
import plumbline_conformance.checks.chat.prompts
import plumbline_conformance.checks.chat.reasoning
import plumbline_conformance.checks.chat.stop
import plumbline_conformance.checks.chat.stored
import plumbline_conformance.checks.chat.stream
import plumbline_conformance.checks.chat.tools
import plumbline_conformance.checks.chat.several_choices
import plumbline_conformance.checks.completions.basics
import plumbline_conformance.checks.completions.choices
import plumbline_conformance.checks.completions.best_of
import plumbline_conformance.checks.completions.limits
import plumbline_conformance.checks.completions.details
import plumbline_conformance.checks.http.hostile
import plumbline_conformance.checks.http.models
import plumbline_conformance.checks.http.optional_fields
import plumbline_conformance.checks.http.refusals
import plumbline_conformance.checks.responses.basics
import plumbline_conformance.checks.responses.stored.background
import plumbline_conformance.checks.responses.stored.compaction
import plumbline_conformance.checks.responses.stored.conversations
import plumbline_conformance.checks.responses.stored.conversation_items
import plumbline_conformance.checks.responses.output_options
import plumbline_conformance.checks.responses.inputs
import plumbline_conformance.checks.responses.stored.lifecycle
import plumbline_conformance.checks.responses.stored.continuation
import plumbline_conformance.checks.responses.tools
import plumbline_conformance.checks.responses.tool_rounds
import plumbline_conformance.checks.tool_defaults
import plumbline_conformance.checks.responses.client_tools
import plumbline_conformance.checks.responses.mcp
import plumbline_conformance.checks.responses.effects
import plumbline_conformance.checks.http.timing
import plumbline_conformance.checks.chat.typed
import plumbline_conformance.checks.responses.typed
import plumbline_conformance.checks.responses.stored.leftovers
import plumbline_conformance.checks.responses.websocket.connection
import plumbline_conformance.checks.responses.websocket.lanes
import plumbline_conformance.checks.responses.websocket.turns
import plumbline_conformance.checks.messages.texts
import plumbline_conformance.checks.messages.tools
import plumbline_conformance.checks.messages.refusals
import plumbline_conformance.checks.messages.further
import plumbline_conformance.checks.messages.typed
import plumbline_conformance.checks.messages.context
import plumbline_conformance.checks.sweeps.schema_keywords
import plumbline_conformance.checks.sweeps.stop_strings
import plumbline_conformance.checks.sweeps.texts
import plumbline_conformance.checks.sweeps.bounds
import plumbline_conformance.checks.sweeps.counts
import plumbline_conformance.checks.sweeps.empty
import plumbline_conformance.checks.sweeps.repeats
import plumbline_conformance.checks.sweeps.fields
import plumbline_conformance.checks.sweeps.pairs
import plumbline_conformance.checks.sweeps.members
import plumbline_conformance.checks.sweeps.ordinary
import plumbline_conformance.checks.sweeps.turns
import plumbline_conformance.checks.sweeps.one_token
import plumbline_conformance.checks.completions.echo_again
import plumbline_conformance.checks.http.methods
import plumbline_conformance.checks.http.pipelining
import plumbline_conformance.checks.http.request_forms
import plumbline_conformance.checks.http.headers
import plumbline_conformance.checks.stored_objects
import plumbline_conformance.checks.soundness  # noqa: F401 - after all scenarios

"""Define everyday tools with natural requests for them.

A family is a schema and phrasings with parameter names in braces. Values come from small makers by kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plumbline_training.texts.words import Lexicon


@dataclass(frozen=True)
class ToolFamily:
    """One everyday tool: its possible names, its parameters by kind, and phrasings of requests."""

    names: str
    about: str
    params: dict[str, str]
    """Parameter name to `kind` or `kind?` for an optional one."""
    asks: str
    """Phrasings separated by "|"; a parameter that is not mentioned is left out of the call."""
    result: str
    """The result of the tool: `key:kind`, separated by spaces."""


FAMILIES: list[ToolFamily] = [
    ToolFamily(
        "get_weather get_current_weather weather fetch_weather",
        "Get the current weather for a city.",
        {"city": "city", "unit": "enum:celsius,fahrenheit?"},
        "What is the weather in {city}?|How is the weather in {city}?|What's the weather like in {city}?|"
        "Weather in {city}|Is it raining in {city}?|What is the weather in {city} in {unit}?|"
        "Tell me the weather in {city} in {unit}.|What is the temperature in {city}?|"
        "How warm is it in {city}?|"
        "Can you check the weather in {city}?|What is the weather like in {city} today?",
        "temperature:small condition:sky",
    ),
    ToolFamily(
        "get_weather get_current_weather",
        "Get the current weather in a given location.",
        {"location": "city", "unit": "enum:celsius,fahrenheit?"},
        "What is the weather in {location}?|What's the weather like in {location} today?|"
        "How is the weather in {location} in {unit}?|What is the weather like in {location}?|"
        "Weather for {location}",
        "temperature:small condition:sky",
    ),
    ToolFamily(
        "get_forecast weather_forecast",
        "Get the weather forecast for a city and a number of days.",
        {"city": "city", "days": "int:1-9"},
        "What is the forecast for {city} for {days} days?|Give me the {days} day forecast for {city}.|"
        "How will the weather be in {city} over the next {days} days?",
        "forecast:sky",
    ),
    ToolFamily(
        "search web_search search_web",
        "Search the web for a query.",
        {"query": "phrase"},
        "Search for {query}|Search the web for {query}.|Look up {query}|Find pages about {query}.|"
        "Please search for {query}.|Google {query}",
        "result:phrase",
    ),
    ToolFamily(
        "send_email email_send",
        "Send an email to a person.",
        {"to": "email", "subject": "phrase"},
        "Send an email to {to} with the subject {subject}.|Email {to} about {subject}.|"
        "Write an email to {to} with subject {subject}.",
        "status:word",
    ),
    ToolFamily(
        "send_message message_send",
        "Send a text message to a person.",
        {"to": "name", "text": "phrase"},
        "Tell {to} {text}|Send {to} the message {text}|Message {to}: {text}|"
        "Send a message to {to} saying {text}.",
        "status:word",
    ),
    ToolFamily(
        "convert_currency currency_convert",
        "Convert an amount of money from one currency to another.",
        {"amount": "int:1-999", "from_currency": "currency", "to_currency": "currency"},
        "Convert {amount} {from_currency} to {to_currency}.|"
        "How much is {amount} {from_currency} in {to_currency}?|"
        "What are {amount} {from_currency} in {to_currency}?",
        "amount:big",
    ),
    ToolFamily(
        "set_timer start_timer",
        "Set a timer for a number of minutes.",
        {"minutes": "int:1-90"},
        "Set a timer for {minutes} minutes.|Start a {minutes} minute timer.|Remind me in {minutes} minutes.|"
        "Wake me in {minutes} minutes.",
        "status:word",
    ),
    ToolFamily(
        "get_time get_current_time",
        "Get the current time in a city.",
        {"city": "city"},
        "What time is it in {city}?|What is the time in {city}?|Tell me the time in {city}.|"
        "Current time in {city}?",
        "time:clock",
    ),
    ToolFamily(
        "get_stock_price stock_price",
        "Get the stock price of a symbol.",
        {"symbol": "symbol"},
        "What is the stock price of {symbol}?|How much is {symbol} stock?|Price of {symbol}?|"
        "What does {symbol} trade at?",
        "price:decimal",
    ),
    ToolFamily(
        "play_music play_song",
        "Play a song.",
        {"song": "phrase"},
        "Play {song}.|Play the song {song}.|I want to hear {song}.|Put on {song}.",
        "status:word",
    ),
    ToolFamily(
        "translate translate_text",
        "Translate a text to another language.",
        {"text": "phrase", "language": "language"},
        "Translate {text} to {language}.|How do you say {text} in {language}?|Say {text} in {language}.",
        "translation:phrase",
    ),
    ToolFamily(
        "add_numbers add calculator_add",
        "Add two numbers.",
        {"a": "int:0-999", "b": "int:0-999"},
        "Add {a} and {b}.|What is {a} plus {b}?|What is {a} + {b}?|Sum {a} and {b}.",
        "result:big",
    ),
    ToolFamily(
        "multiply multiply_numbers",
        "Multiply two numbers.",
        {"a": "int:0-999", "b": "int:0-999"},
        "Multiply {a} by {b}.|What is {a} times {b}?|Multiply {a} and {b}.|What is {a} * {b}?",
        "result:big",
    ),
    ToolFamily(
        "book_table reserve_table",
        "Reserve a table at a restaurant.",
        {"restaurant": "name", "people": "int:1-9", "time": "clock"},
        "Book a table at {restaurant} for {people} people at {time}.|"
        "Reserve a table for {people} at {restaurant} at {time}.|"
        "Get me a table for {people} at {restaurant}, {time}.",
        "confirmation:code",
    ),
    ToolFamily(
        "create_event add_event",
        "Create a calendar event.",
        {"title": "phrase", "date": "date"},
        "Create an event {title} on {date}.|Put {title} on my calendar for {date}.|"
        "Add {title} to the calendar on {date}.",
        "event_id:code",
    ),
    ToolFamily(
        "get_order_status order_status",
        "Get the status of an order.",
        {"order_id": "code"},
        "Where is my order {order_id}?|What is the status of order {order_id}?|Check order {order_id}.",
        "status:word",
    ),
    ToolFamily(
        "turn_on_light set_light",
        "Switch the light in a room on or off.",
        {"room": "noun", "on": "bool"},
        "Set the light in the {room} with on {on}.|Light in the {room}: on {on}.",
        "status:word",
    ),
    ToolFamily(
        "get_distance distance_between",
        "Get the distance between two cities.",
        {"start": "city", "end": "city"},
        "How far is it from {start} to {end}?|What is the distance from {start} to {end}?|"
        "Distance between {start} and {end}?",
        "distance:big",
    ),
    ToolFamily(
        "find_flights search_flights",
        "Find flights between two cities on a date.",
        {"origin": "city", "destination": "city", "date": "date"},
        "Find flights from {origin} to {destination} on {date}.|"
        "I want to fly from {origin} to {destination} on {date}.|"
        "Flights from {origin} to {destination} for {date}?",
        "flight:code",
    ),
    ToolFamily(
        "get_user find_user",
        "Get a user by id.",
        {"user_id": "int:1-9999"},
        "Get the user with id {user_id}.|Find user {user_id}.|Who is user {user_id}?",
        "name:name",
    ),
    ToolFamily(
        "set_temperature set_thermostat",
        "Set the temperature of a room.",
        {"room": "noun", "degrees": "int:10-30"},
        "Set the {room} to {degrees} degrees.|Make the {room} {degrees} degrees.|"
        "Heat the {room} to {degrees} degrees.",
        "status:word",
    ),
    ToolFamily(
        "read_file open_file",
        "Read a file.",
        {"path": "path"},
        "Read the file {path}.|Open {path}.|Show me {path}.|What is in {path}?",
        "content:phrase",
    ),
]

CURRENCIES = ["USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "DKK", "CAD", "AUD", "INR", "CNY"]
LANGUAGES = [
    "French",
    "German",
    "Spanish",
    "Italian",
    "Dutch",
    "Polish",
    "Greek",
    "Danish",
    "Swedish",
    "Finnish",
    "Turkish",
    "Japanese",
]
SKY = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"]


def value(lx: Lexicon, kind: str) -> Any:
    """Return a value of a kind: a string for text kinds, a number for `int` and the like."""
    kind, _, detail = kind.rstrip("?").partition(":")
    rng = lx.rng
    if kind == "int":
        low, high = (int(n) for n in detail.split("-"))
        return lx.number(low, high) if high - low >= 80 else rng.randint(low, high)
    if kind == "enum":
        return lx.one(detail.split(","))
    makers: dict[str, Callable[[], Any]] = {
        "city": lx.city,
        "name": lx.name,
        "noun": lambda: lx.word(0.3),
        "word": lx.word,
        "phrase": lambda: " ".join(lx.words(1, 3, invented=0.4)),
        "email": lambda: f"{lx.name().lower()}@{lx.word()}.com",
        "currency": lambda: lx.one(CURRENCIES),
        "language": lambda: lx.one(LANGUAGES),
        "sky": lambda: lx.one(SKY),
        "small": lambda: rng.randint(-9, 39),
        "big": lambda: lx.number(10, 9999),
        "integer": lambda: lx.number(0, 999) if lx.chance(0.7) else rng.randint(0, 30),
        "decimal": lambda: float(lx.draw(lambda: f"{rng.randint(0, 300)}.{rng.randint(1, 9)}")),
        "bool": lambda: lx.chance(0.5),
        "clock": lambda: f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}",
        "date": lambda: lx.draw(
            lambda: f"20{rng.randint(20, 35)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        ),
        "code": lambda: lx.draw(
            lambda: (
                "".join(rng.choices("ABCDEFGHKLMNPRSTUVWXYZ", k=rng.randint(1, 2)))
                + str(rng.randint(10, 9999))
            )
        ),
        "symbol": lambda: lx.draw(
            lambda: "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randint(3, 4)))
        ),
        "path": lambda: f"{lx.word()}/{lx.word()}.{lx.one(('txt', 'md', 'csv', 'py', 'json'))}",
    }
    return makers[kind]()

"""Build grammars from schemas, regexes and Lark; knows no dialect."""

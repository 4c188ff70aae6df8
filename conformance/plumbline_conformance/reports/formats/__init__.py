"""Write a report in one format each: text, Markdown, HTML, JUnit, badge, HAR."""

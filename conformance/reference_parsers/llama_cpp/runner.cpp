// Answer questions of `plumbline vectors` with llama.cpp's parser of chat messages.
//
// llama.cpp derives a parser from a chat template, so the argument is a table of dialects and template files:
//
//     runner TABLE FOLDER      lines of TABLE: dialect, a tab, name of a file in FOLDER

#include "chat.h"
#include "json.h"
#include "log.h"

#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

// One parser for each dialect and each set of tools.
static std::map<std::string, common_chat_templates_ptr> templates;

static std::string read_file(const std::string & path) {
    std::ifstream file(path);
    if (!file) {
        throw std::runtime_error("cannot read " + path);
    }
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static common_chat_parser_params parser_of(const common_json & question, const common_chat_templates * found) {
    common_chat_templates_inputs inputs;
    common_chat_msg user;
    user.role = "user";
    user.content = "Hi";
    inputs.messages = { user };
    inputs.parallel_tool_calls = true;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
    inputs.enable_thinking = question.at("thinking").get<bool>();
    if (!question.at("tools").empty()) {
        inputs.tools = common_chat_tools_parse_oaicompat(question.at("tools"));
    }
    auto params = common_chat_templates_apply(found, inputs);
    common_chat_parser_params parser(params);
    parser.reasoning_format = inputs.reasoning_format;
    if (!params.parser.empty()) {
        parser.parser.load(params.parser);
    }
    // The question says whether the prompt has opened the thinking.
    std::string opened = question.at("opened").get<std::string>();
    std::string & prompt = parser.generation_prompt;
    const auto & tag = params.thinking_start_tag;
    auto at = tag.empty() ? std::string::npos : prompt.rfind(tag);
    bool opens = at != std::string::npos && prompt.find_first_not_of(" \n", at + tag.size()) == std::string::npos;
    if (opened.empty() && opens) {
        prompt = prompt.substr(0, at);
    } else if (!opened.empty() && !opens) {
        prompt += opened + "\n";
    }
    return parser;
}

static common_json message_of(const common_chat_msg & message) {
    common_json calls = common_json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back({ { "name", call.name }, { "arguments", call.arguments } });
    }
    return { { "reasoning", message.reasoning_content }, { "content", message.content }, { "calls", calls } };
}

// Add up what a client gets of the messages that are parsed of longer and longer texts.
static void add(common_chat_msg & sum, const common_chat_msg & before, const common_chat_msg & now) {
    for (const auto & diff : common_chat_msg_diff::compute_diffs(before, now)) {
        sum.reasoning_content += diff.reasoning_content_delta;
        sum.content += diff.content_delta;
        if (diff.tool_call_index != std::string::npos) {
            if (sum.tool_calls.size() <= diff.tool_call_index) {
                sum.tool_calls.resize(diff.tool_call_index + 1);
            }
            sum.tool_calls[diff.tool_call_index].name += diff.tool_call_delta.name;
            sum.tool_calls[diff.tool_call_index].arguments += diff.tool_call_delta.arguments;
        }
    }
}

static common_json answer(const common_json & question, const std::map<std::string, std::string> & table,
                          const std::string & folder) {
    if (question.at("suite").get<std::string>() != "parsers") {
        return { { "skipped", "only the parser is called" } };
    }
    std::string name = question.at("dialect").at("name").get<std::string>();
    auto row = table.find(name);
    if (row == table.end()) {
        return { { "skipped", "llama.cpp has no template of the family" } };
    }
    if (!templates.count(name)) {
        templates[name] = common_chat_templates_init(nullptr, read_file(folder + "/" + row->second));
    }
    auto parser = parser_of(question, templates[name].get());
    bool cut = question.at("finish").get<std::string>() == "length";
    std::string text;
    common_chat_msg sum, before;
    for (const auto & piece : question.at("pieces")) {
        text += piece.get<std::string>();
        if (question.at("streamed").get<bool>()) {
            auto now = common_chat_parse(text, true, parser);
            if (!now.empty()) {
                add(sum, before, now);
                before = now;
            }
        }
    }
    auto last = common_chat_parse(text, cut, parser);
    if (!question.at("streamed").get<bool>()) {
        return { { "message", message_of(last) } };
    }
    add(sum, before, last);
    return { { "message", message_of(sum) } };
}

int main(int, char ** arguments) {
    common_log_set_verbosity_thold(-1);
    std::map<std::string, std::string> table;
    std::ifstream rows(arguments[1]);
    for (std::string row; std::getline(rows, row);) {
        auto tab = row.find('\t');
        if (tab != std::string::npos) {
            table[row.substr(0, tab)] = row.substr(tab + 1);
        }
    }
    for (std::string line; std::getline(std::cin, line);) {
        common_json reply;
        try {
            auto question = common_json::parse(line);
            reply = question.contains("hello") ? common_json{ { "name", "llama.cpp" }, { "version", VERSION } }
                                               : answer(question, table, arguments[2]);
        } catch (const std::exception & error) {
            reply = { { "error", std::string(error.what()).substr(0, 200) } };
        }
        std::cout << reply.dump() << std::endl;
    }
}

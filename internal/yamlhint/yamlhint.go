// Package yamlhint says in plain words what the YAML parser finds wrong, and what to do
// about it.
package yamlhint

import "strings"

var remedies = []struct{ says, remedy string }{
	{"could not find expected ':'", "write KEY: VALUE here or in the line before; text of several lines goes after | or into quotes"},
	{"mapping values are not allowed", "put text that holds a colon into quotes, and indent the keys of one mapping alike"},
	{"unexpected end of stream", "close the quotes"},
	{"unknown anchor", "put text that begins with * into quotes"},
	{"cannot start any token", "put text that begins with @, ` or % into quotes"},
}

// Remedy is for a message of the parser.
func Remedy(message string) string {
	for _, r := range remedies {
		if strings.Contains(message, r.says) {
			return r.remedy
		}
	}
	return "close brackets and quotes, and indent the lines of one block alike, with spaces"
}

// Plain says what a message of the parser means.
func Plain(message string) string {
	if strings.HasPrefix(message, "did not find expected") {
		return "the YAML breaks off, or its indentation is wrong, in what begins here"
	}
	return message
}

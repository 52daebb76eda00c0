package manifest

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/yamlhint"
)

// checkText says why data cannot be YAML text at all.
func checkText(data []byte, name string) *onpath.Error {
	for _, bom := range []string{"\xff\xfe", "\xfe\xff"} {
		if bytes.HasPrefix(data, []byte(bom)) {
			return invalid(name+":1:1", "the file is UTF-16", "save it as UTF-8")
		}
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return invalid(placeAt(data, name, i), "the file is binary, not YAML", "name a text file, as -o yaml writes one")
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return invalid(placeAt(data, name, i), fmt.Sprintf("byte %#02x is not UTF-8 text", data[i]), "save the file as UTF-8")
		}
		if r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0x7f {
			return invalid(placeAt(data, name, i), fmt.Sprintf("the control character %#02x cannot stand in YAML", r), "take it out")
		}
		i += n
	}
	return nil
}

func placeAt(data []byte, name string, offset int) string {
	line := 1 + bytes.Count(data[:offset], []byte("\n"))
	column := offset - bytes.LastIndexByte(data[:offset], '\n')
	return fmt.Sprintf("%s:%d:%d", name, line, column)
}

// lastOf is the value that stands last in a document.
func lastOf(n *yaml.Node) *yaml.Node {
	for len(n.Content) > 0 {
		n = n.Content[len(n.Content)-1]
	}
	return n
}

// cutWithin tells whether a file that ends with the value last may have been cut
// off in its middle. What has brackets or quotes to close, the parser refuses;
// words and texts are whole wherever they end, so all there is to go by is that
// the last line has no end.
func cutWithin(data []byte, last *yaml.Node) bool {
	if len(data) == 0 || data[len(data)-1] == '\n' || last.Kind != yaml.ScalarNode {
		return false
	}
	switch last.Style {
	case yaml.LiteralStyle, yaml.FoldedStyle:
		return true
	case yaml.DoubleQuotedStyle, yaml.SingleQuotedStyle:
		return false
	}
	return !bytes.ContainsAny(data[len(data)-1:], "]} \t")
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntaxError turns an error of the YAML parser into one of ours: the parser
// names the line alone, and calls tabs "characters that cannot start a token".
func syntaxError(data []byte, name string, err error) located {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if m := yamlLine.FindStringSubmatchIndex(message); m != nil {
		line, _ = strconv.Atoi(message[m[2]:m[3]])
		message = message[m[1]:]
	}
	lines := strings.Split(string(data), "\n")
	if n := len(lines); line > n {
		line = n
	}
	remedy := ""
	if at := tabIndented(lines, line); at > 0 {
		line, message, remedy = at, "a tab indents this line", "YAML is indented with spaces"
	} else if strings.Contains(message, "exceeded max depth") {
		message, remedy = "brackets or lists are nested more than 10,000 deep",
			"see whether something is left open; no resource is nested so"
	} else if strings.HasPrefix(message, "did not find expected") {
		line = min(line+1, len(lines)) // the parser counts from 0 here, and names where the block begins
		message = yamlhint.Plain(message)
	}
	if strings.HasSuffix(message, "unexpected end of stream") {
		message, remedy = "quotes are still open where the file ends", "close the quotes"
	}
	if remedy == "" {
		remedy = yamlhint.Remedy(message)
	}
	column := 1
	if line >= 1 && line <= len(lines) {
		text := lines[line-1]
		column += len(text) - len(strings.TrimLeft(text, " "))
	}
	p := position{line, column}
	return located{err: invalid(fmt.Sprintf("%s:%d:%d", name, line, column), message, remedy), position: p}
}

// tabIndented finds a line with a tab in its indentation at or just around line.
func tabIndented(lines []string, line int) int {
	for _, n := range []int{line, line + 1, line - 1} {
		if n < 1 || n > len(lines) {
			continue
		}
		text := lines[n-1]
		if strings.HasPrefix(strings.TrimLeft(text, " "), "\t") && strings.TrimSpace(text) != "" {
			return n
		}
	}
	return 0
}

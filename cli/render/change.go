package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/onpath/onpath/api/wire"
)

// Change is a field with its values before and after, each of so many bytes at most.
func Change(d wire.FieldChange, most int) string {
	short := func(b []byte) string {
		switch s := Value(d.Field, b); {
		case s == "":
			return "(absent)"
		case len(s) > most:
			return strings.ToValidUTF8(s[:most], "") + "…"
		default:
			return s
		}
	}
	return fmt.Sprintf("%s: %s → %s", d.Field, short(d.Old), short(d.New))
}

// Value is a field's JSON as people write it: &, < and > as they are, modes of files octal.
func Value(field string, b []byte) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return string(b)
	}
	if n, ok := v.(json.Number); ok && strings.Contains(field, ".files.") && strings.HasSuffix(field, ".mode") {
		if mode, err := strconv.ParseUint(n.String(), 10, 32); err == nil {
			return fmt.Sprintf("%#o", mode)
		}
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return string(b)
	}
	return strings.TrimSpace(out.String())
}

package change

import (
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

// TestBadJSON: what is wrong with a body is said without the words of Go or of a library.
func TestBadJSON(t *testing.T) {
	chain := func(spec string) string {
		return `{"apiVersion":"onpath/v1alpha1","kind":"Chain","metadata":{"name":"x"},"spec":` + spec + `}`
	}
	for body, want := range map[string]string{
		`[]`:                              "the object is a list where an object {…} is wanted",
		`{"apiVersion":`:                  "broken off",
		`x`:                               "no JSON",
		``:                                "broken off",
		`"x"`:                             "is text where an object",
		chain(`{"through":{}}`):           "spec.through: is an object where a list […] is wanted",
		chain(`{"disabled":"yes"}`):       "spec.disabled: is text where true or false is wanted",
		chain(`{"priority":"high"}`):      "spec.priority: is text where a number is wanted",
		chain(`{"nope":1}`):               `unknown field "nope"`,
		chain(`[1]`):                      "spec: is a list where an object",
		chain(`{"select":[{"src":[1]}]}`): "",
	} {
		_, err := router.DecodeObject([]byte(body))
		if err == nil || onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, must have %q", body, err, want)
			continue
		}
		for _, word := range []string{"Go ", "json:", "unmarshal", "onpath.", "struct", "EOF"} {
			if strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q has the word %q", body, err, word)
			}
		}
	}
	for body, want := range map[string]string{
		`[1]`: "the request is a list", `{"objects":3}`: "objects: is a number where a list", `{"dryRun":"x"}`: "dryRun: is text where true or false",
		``: "the request is empty",
	} {
		if _, err := decodeApply([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, must have %q", body, err, want)
		}
	}
}

package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestIfMatch: a change that names a version is refused if that is not there any more, and
// leaves what is there: with 412 if If-Match names it, with 409 if the body does. The answer
// to a read says the version.
func TestIfMatch(t *testing.T) {
	w := newWorld(t)
	w.tenant("acme")
	const path = "/v1/hosts/acme/site"
	body := func(address string) string {
		return fmt.Sprintf(`{"apiVersion":"onpath/v1alpha1","kind":"Hosts","metadata":{"name":"site","tenant":"acme"},"spec":{"addresses":[%q]}}`, address)
	}
	ask := func(want int, words, method, match, body string) (tag string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if match != "" {
			r.Header.Set("If-Match", match)
		}
		status, answer, tag := w.send(r)
		if status != want || !strings.Contains(answer, words) {
			t.Errorf("%s with %q: %d %s; want %d %q", method, match, status, answer, want, words)
		}
		return tag
	}
	ask(http.StatusPreconditionFailed, "", "PUT", "*", body("10.0.0.1")) // nothing is there that could match
	ask(http.StatusPreconditionFailed, "", "PUT", `"7"`, body("10.0.0.1"))
	first := ask(http.StatusOK, "", "PUT", "", body("10.0.0.1"))
	if got := ask(http.StatusOK, "10.0.0.1", "GET", "", ""); got != first || first == "" {
		t.Errorf("the version is %s, after it was written as %s", got, first)
	}
	second := ask(http.StatusOK, "", "PUT", first, body("10.0.0.2"))
	ask(http.StatusPreconditionFailed, "it changed since it was read", "PUT", first, body("10.0.0.3"))
	ask(http.StatusPreconditionFailed, "it changed since it was read", "DELETE", first, "")
	named := strings.Replace(body("10.0.0.3"), `"name":"site",`, `"name":"site","version":`+strings.Trim(first, `"`)+`,`, 1)
	ask(http.StatusConflict, "it changed since it was read", "PUT", "", named)
	for _, bad := range []string{"six", `"0"`, `"-1"`, `W/"6"`, `"1", "2"`} {
		ask(http.StatusBadRequest, "If-Match is", "PUT", bad, body("10.0.0.3"))
	}
	if got := ask(http.StatusOK, "10.0.0.2", "GET", "", ""); got != second {
		t.Errorf("a refused change leaves version %s, not %s", got, second)
	}
	ask(http.StatusOK, "", "PUT", "*", body("10.0.0.4"))
	ask(http.StatusPreconditionFailed, "", "DELETE", second, "")
	third := ask(http.StatusOK, "10.0.0.4", "GET", "", "")
	ask(http.StatusOK, `"action":"delete"`, "DELETE", third, "")
	ask(http.StatusNotFound, "", "DELETE", third, "")
}

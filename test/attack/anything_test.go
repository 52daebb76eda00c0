package attack_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath/api/auth"
)

// operation is one of the API's document.
type operation struct {
	method, path string
	Parameters   []struct {
		Name   string         `json:"name"`
		In     string         `json:"in"`
		Schema map[string]any `json:"schema"`
	} `json:"parameters"`
	Body struct {
		Content map[string]struct {
			Schema map[string]any `json:"schema"`
		} `json:"content"`
	} `json:"requestBody"`
}

// document is what of the API's document requests are made of.
type document struct {
	operations []operation
	schemas    map[string]map[string]any
}

func readDocument(t *testing.T, operator *somebody) document {
	t.Helper()
	code, text := operator.askAll(t.Context(), "/openapi.json")
	var doc struct {
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%d %v", code, err)
	}
	out := document{schemas: doc.Components.Schemas}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			o := operation{method: strings.ToUpper(method), path: path}
			if method == "parameters" {
				continue
			}
			if err := json.Unmarshal(doc.Paths[path][method], &o); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			out.operations = append(out.operations, o)
		}
	}
	if len(out.operations) < 50 {
		t.Fatalf("only %d operations", len(out.operations))
	}
	return out
}

// words that are there, that are not, and that somebody may have forgotten.
var words = []string{"shop", "evil", "web", "fw", "site", "gw1", "fra1", "operator", "default", "203.0.113.10", "203.0.113.0/24", "any", "0", "-1",
	"18446744073709551616", "1e400", "NaN", "", " ", "..", "../..", "a/b", "%00", "\x00", "é\u202e", "{}", "[]", "null", "true", "1h", "-5s", "10Ti",
	"2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "registry.example/x:1", strings.Repeat("x", 300), "::ffff:10.0.0.1", "fe80::1%eth0"}

func word(r *rand.Rand) string { return words[r.IntN(len(words))] }

// value is one that fits a schema, more or less.
func (d document) value(r *rand.Rand, schema map[string]any, depth int) any {
	if ref, ok := schema["$ref"].(string); ok {
		schema = d.schemas[ref[strings.LastIndexByte(ref, '/')+1:]]
	}
	if r.IntN(12) == 0 || depth > 8 { // another kind of value
		return []any{nil, word(r), -1, 1 << 62, 0.5, true, []any{}, map[string]any{}, []any{nil}, map[string]any{"": nil}}[r.IntN(10)]
	}
	if list, ok := schema["enum"].([]any); ok && r.IntN(4) > 0 {
		return list[r.IntN(len(list))]
	}
	kind := schema["type"]
	if list, ok := kind.([]any); ok {
		kind = list[r.IntN(len(list))]
	}
	switch kind {
	case "object":
		out := map[string]any{}
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			if s, ok := properties[name].(map[string]any); ok && r.IntN(2) == 0 {
				out[name] = d.value(r, s, depth+1)
			}
		}
		if s, ok := schema["additionalProperties"].(map[string]any); ok {
			for range r.IntN(3) {
				out[word(r)] = d.value(r, s, depth+1)
			}
		}
		return out
	case "array":
		var out []any
		if s, ok := schema["items"].(map[string]any); ok {
			for range r.IntN(4) {
				out = append(out, d.value(r, s, depth+1))
			}
		}
		return out
	case "integer", "number":
		return []any{0, 1, -1, 2, 65536, int64(1) << 40, int64(-1) << 63}[r.IntN(7)]
	case "boolean":
		return r.IntN(2) == 0
	case "string":
		return word(r)
	}
	return map[string]any{"apiVersion": "onpath/v1alpha1", "kind": "Hosts", "metadata": map[string]any{"name": word(r), "tenant": word(r)}, "spec": nil}
}

// request is one that an operation's part of the document allows, more or less.
func (d document) request(r *rand.Rand, o operation) (path, body string) {
	path = o.path
	query := url.Values{}
	for _, p := range o.Parameters {
		v := fmt.Sprint(d.value(r, p.Schema, 7))
		switch p.In {
		case "path":
			if v == "" || r.IntN(2) == 0 {
				v = words[r.IntN(8)]
			}
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(v))
		case "query":
			if r.IntN(2) == 0 {
				query.Set(p.Name, v)
			}
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	for _, c := range o.Body.Content {
		b, err := json.Marshal(d.value(r, c.Schema, 0))
		if err != nil {
			return path, "{"
		}
		if body = string(b); r.IntN(20) == 0 {
			body = body[:r.IntN(len(body)+1)]
		}
	}
	return path, body
}

// TestAnything: whoever asks for whatever, the server says what is wrong with it, and goes on.
func TestAnything(t *testing.T) {
	s := newServer(t)
	requests := 300
	if os.Getenv("ONPATH_SOAK") != "" {
		requests = 20_000
	}
	operator := &somebody{http: s.operator.HTTP(), base: s.operator.URL()}
	viewer, _ := s.bearer(auth.TokenRequest{Role: auth.RoleViewer, Name: "board", Tenant: "shop"})
	roles := map[string]*somebody{"operator": operator, "viewer": viewer, "stranger": s.stranger(),
		"user": s.joined(auth.TokenRequest{Role: auth.RoleUser, Name: "mallory", Tenant: "evil"}),
		"node": s.joined(auth.TokenRequest{Role: auth.RoleNode, Name: "gw9", Cloudlet: "fra1"})}
	names := slices.Sorted(maps.Keys(roles))
	doc := readDocument(t, operator)
	seed := uint64(time.Now().UnixNano())
	answered := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	const workers = 8
	for w := range uint64(workers) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, w))
			for range requests / workers {
				o, role := doc.operations[r.IntN(len(doc.operations))], names[r.IntN(len(names))]
				path, body := doc.request(r, o)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // some answers do not end
				code, text := roles[role].ask(ctx, o.method, path, body)
				cancel()
				mu.Lock()
				answered[fmt.Sprint(code)]++
				mu.Unlock()
				if code >= 500 && code != 501 && code != 503 && code != 507 {
					t.Errorf("seed %d: %s: %s %q %s: %d %s", seed, role, o.method, path, body, code, text)
				}
			}
		})
	}
	wg.Wait()
	if code, text := operator.ask(t.Context(), "GET", "/v1/chains", ""); code != 200 {
		t.Errorf("afterwards: %d %s", code, text)
	}
	t.Logf("seed %d: %v", seed, answered)
}

package reference_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/reference"
)

//go:generate go test . -run ^TestGenerated -update

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

const root = "../.."

func source(t *testing.T) *reference.Source {
	t.Helper()
	s, err := reference.Parse(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readOnly(kind string) bool { return onpath.Kind(kind).ReadOnly() }

// TestGenerated compares the committed reference with what the types say now.
func TestGenerated(t *testing.T) {
	s := source(t)
	schema, err := s.Schema(readOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		path string
		text []byte
	}{
		{"api/manifest/onpath.schema.json", schema},
		{"docs/reference/resources.md", []byte(s.Markdown(readOnly))},
	} {
		p := filepath.Join(root, f.path)
		if *update {
			if err := os.WriteFile(p, f.text, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(p); err != nil || string(got) != string(f.text) {
			t.Errorf("%s is not what the types say (%v); run go generate ./...", f.path, err)
		}
	}
}

// TestSchemaIsWhole checks that every reference resolves, and that the fields
// are those which the strict decoder knows, by reflection.
func TestSchemaIsWhole(t *testing.T) {
	data, err := source(t).Schema(readOnly)
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs map[string]struct {
			Properties map[string]json.RawMessage `json:"properties"`
			Enum       []string                   `json:"enum"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(data), `"$ref": "#/$defs/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if _, ok := schema.Defs[name]; !ok {
			t.Errorf("%s is referred to and not defined", name)
		}
	}
	for _, k := range onpath.Kinds() {
		if k.ReadOnly() {
			continue
		}
		o, err := onpath.New(k)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(o).Elem()) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				want = append(want, name)
			}
		}
		var got []string
		for name := range schema.Defs[string(k)].Properties {
			got = append(got, name)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: properties %v, want %v", k, got, want)
		}
	}
	if got, want := schema.Defs["Mode"].Enum, []string{"inline", "mirror"}; !slices.Equal(got, want) {
		t.Errorf("Mode: %v, want %v", got, want)
	}
}

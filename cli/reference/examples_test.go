package reference_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// TestExamplesFitSchema holds the JSON Schema, as an editor applies it, against every
// object that users are shown.
func TestExamplesFitSchema(t *testing.T) {
	c := jsonschema.NewCompiler()
	schema, err := c.Compile(filepath.Join(root, "api/manifest/onpath.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	objects := 0
	for _, pattern := range []string{"examples/*/*.yaml", "functions/*/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(append([]byte("\n"), data...), []byte("\napiVersion:")) {
				continue // a lab or an image recipe
			}
			d := yaml.NewDecoder(bytes.NewReader(data))
			for {
				var o any
				if err := d.Decode(&o); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", f, err)
				}
				objects++
				if err := schema.Validate(o); err != nil {
					t.Errorf("%s: %v", f, err)
				}
			}
		}
	}
	if objects < 50 {
		t.Errorf("%d objects in the examples; there should be some hundred", objects)
	}
}

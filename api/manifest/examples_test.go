package manifest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath/api/manifest"
)

// TestExamplesAreValid reads every resource file that users are shown.
func TestExamplesAreValid(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../examples/*/*.yaml", "../../functions/*/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(append([]byte("\n"), data...), []byte("\napiVersion:")) {
			continue // a lab or an image recipe
		}
		if _, err := manifest.Load([]string{f}, nil); err != nil {
			t.Error(err)
		}
	}
}

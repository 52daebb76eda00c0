package ociimage

import (
	"os"
	"path/filepath"
	"testing"
)

// TestBase: a recipe finds its base beside it, and by an absolute path.
func TestBase(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		folder := filepath.Join(dir, name)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, RecipeFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return folder
	}
	base := write("base", "packages: [nftables]\n")
	for name, text := range map[string]string{"beside": "base: ../base\n", "absolute": "base: " + base + "\n"} {
		r, err := ReadRecipe(write(name, text))
		if err != nil {
			t.Fatal(err)
		}
		if all, err := stack(r); err != nil || len(all) != 2 || all[0].Name != "base" {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
	r, err := ReadRecipe(write("own", "base: "+filepath.Join(dir, "own")+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stack(r); err == nil {
		t.Error("a recipe that is its own base is taken")
	}
}

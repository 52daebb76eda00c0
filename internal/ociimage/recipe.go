// Package ociimage makes OCI images from Debian packages, on the machine at hand
// and without a registry: one small recipe per image, mmdebstrap for the root
// file system, layers shared between images, and a cache keyed by what goes in.
package ociimage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/onpath/onpath"
)

// RecipeFile is the name of the recipe in its folder.
const RecipeFile = "image.yaml"

// Recipe says what an image consists of.
type Recipe struct {
	// Name is the folder's.
	Name string `yaml:"-"`
	dir  string
	raw  []byte
	// Base is the folder of the recipe whose layers this image builds on,
	// relative to this recipe's, or absolute.
	Base string `yaml:"base"`
	// Packages of the distribution: "squid", or with the least version that
	// will do, "suricata >= 1:7".
	Packages []string `yaml:"packages"`
	// Files to add, by their path in the image.
	Files map[string]AddedFile `yaml:"files"`
	// The rest is the image's configuration.
	Entrypoint []string          `yaml:"entrypoint"`
	Command    []string          `yaml:"command"`
	Env        map[string]string `yaml:"env"`
	User       string            `yaml:"user"`
	WorkingDir string            `yaml:"workingDir"`
}

// path is where something lies that the recipe names.
func (r *Recipe) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(r.dir, name)
}

// AddedFile is a file beside the recipe, or anywhere if its path is absolute.
type AddedFile struct {
	From string `yaml:"from"`
	Mode uint32 `yaml:"mode"` // default 0644
}

// pkg is one line of Recipe.Packages.
type pkg struct{ name, least string }

func parsePackage(s string) (pkg, error) {
	name, least, found := strings.Cut(s, ">=")
	p := pkg{strings.TrimSpace(name), strings.TrimSpace(least)}
	if p.name == "" || strings.ContainsAny(p.name, " ,=<>/") || found && p.least == "" {
		return p, fmt.Errorf("%q is no package: write NAME or NAME >= VERSION", s)
	}
	return p, nil
}

// ReadRecipe reads the recipe in a folder.
func ReadRecipe(dir string) (*Recipe, error) {
	path := filepath.Join(dir, RecipeFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeNotFound, "image recipe: %w", err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Recipe{Name: filepath.Base(abs), dir: abs, raw: raw}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(r); err != nil {
		return nil, &onpath.Error{Code: onpath.CodeInvalid, Place: path, Message: err.Error(), Cause: err}
	}
	for _, p := range r.Packages {
		if _, err := parsePackage(p); err != nil {
			return nil, &onpath.Error{Code: onpath.CodeInvalid, Place: path, Message: err.Error(), Cause: err}
		}
	}
	for name, f := range r.Files {
		if !filepath.IsAbs(name) || filepath.Clean(name) != name || f.From == "" {
			return nil, &onpath.Error{Code: onpath.CodeInvalid, Place: path,
				Message: fmt.Sprintf("file %q needs an absolute, clean path and a from", name)}
		}
	}
	return r, nil
}

// packages are the recipe's own, without its base's.
func (r *Recipe) packages() []pkg {
	out := make([]pkg, 0, len(r.Packages))
	for _, s := range r.Packages {
		p, _ := parsePackage(s) // checked by ReadRecipe
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// filePaths lists the added files in order.
func (r *Recipe) filePaths() []string {
	out := make([]string, 0, len(r.Files))
	for p := range r.Files {
		out = append(out, p)
	}
	sort.Strings(out)
	return out
}

func (f AddedFile) mode() int64 {
	if f.Mode == 0 {
		return 0o644
	}
	return int64(f.Mode & 0o777)
}

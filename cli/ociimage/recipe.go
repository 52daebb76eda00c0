// Package ociimage makes OCI images from Debian packages, on the machine at hand
// and without a registry: one small recipe per image, mmdebstrap for the root
// file system, layers shared between images, and a cache keyed by what goes in.
package ociimage

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
)

// RecipeFile is the name of the recipe in its folder.
const RecipeFile = "image.yaml"

// Recipe says what an image consists of.
type Recipe struct {
	// Name is the folder's.
	Name string `json:"-"`
	dir  string
	raw  []byte // of the file, a part of the cache's key
	// Base is the folder of the recipe whose layers this image builds on,
	// relative to this recipe's, or absolute.
	Base string `json:"base"`
	// Packages of the distribution: "squid", or with the least version that
	// will do, "suricata >= 1:7".
	Packages []string `json:"packages"`
	// Files to add, by their path in the image.
	Files map[string]AddedFile `json:"files"`
	// Program is where this program, which is static, lies in the image; empty: it is not in it.
	Program string `json:"program"`
	// The rest is the image's configuration.
	Entrypoint []string          `json:"entrypoint"`
	Command    []string          `json:"command"`
	Env        map[string]string `json:"env"`
	User       string            `json:"user"`
	WorkingDir string            `json:"workingDir"`
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
	From string `json:"from"`
	Mode uint32 `json:"mode"` // default 0644
}

// pkg is one line of Recipe.Packages.
type pkg struct{ name, least string }

func parsePackage(s string) (pkg, error) {
	name, least, found := strings.Cut(s, ">=")
	p := pkg{strings.TrimSpace(name), strings.TrimSpace(least)}
	if p.name == "" || strings.ContainsAny(p.name, " ,=<>/") || found && p.least == "" {
		return p, fmt.Errorf("%q is not a package", s)
	}
	return p, nil
}

// ReadRecipe reads the recipe in a folder.
func ReadRecipe(dir string) (*Recipe, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, RecipeFile)
	r := &Recipe{Name: filepath.Base(abs), dir: abs}
	if r.raw, err = os.ReadFile(path); err != nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "recipe: %w", err)
	}
	doc, err := manifest.Strict(r.raw, path, r)
	if err != nil {
		return nil, err
	}
	if r.Program != "" {
		own, err := os.Executable()
		if err != nil {
			return nil, err
		}
		if r.Files == nil {
			r.Files = map[string]AddedFile{}
		}
		r.Files[r.Program] = AddedFile{From: own, Mode: 0o755}
	}
	var wrong onpath.Errors
	add := func(field, remedy, format string, args ...any) {
		wrong = append(wrong, &onpath.Error{Code: onpath.CodeInvalid, Place: doc.PlaceOf(field), Field: field,
			Message: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if r.Base != "" && !exists(filepath.Join(r.path(r.Base), RecipeFile)) {
		add("base", "name the folder of a recipe, relative to this one or absolute", "%s has no %s", r.path(r.Base), RecipeFile)
	}
	for i, p := range r.Packages {
		if _, err := parsePackage(p); err != nil {
			add(fmt.Sprintf("packages[%d]", i), "write NAME, or NAME >= VERSION", "%s", err)
		}
	}
	for _, name := range r.filePaths() {
		at, from := "files["+name+"]", r.Files[name].From
		switch {
		case !filepath.IsAbs(name) || filepath.Clean(name) != name:
			add(at, "write "+filepath.Clean("/"+name), "%q is not an absolute path without . and ..", name)
		case from == "":
			add(at, "write from: FILE", "has no file")
		case !exists(r.path(from)):
			add(at+".from", "make it, or correct the name", "%s: there is no such file", r.path(from))
		}
	}
	return r, wrong.Err()
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

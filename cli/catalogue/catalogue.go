// Package catalogue reads the functions that the program carries: for whom each is, what it can
// be told, and the objects that put it to use.
package catalogue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/functions"
)

// The files of an entry's folder.
const (
	File         = "catalogue.yaml"
	functionFile = "function.yaml"
)

// Entry is a function of the catalogue: catalogue.yaml, and what stands beside it.
type Entry struct {
	Name string `json:"-"` // of the folder
	// For says in one sentence for whom the function is.
	For string `json:"for"`
	// Use is three lines of a shell that put the function to use, and show that it works. They
	// may name the cloudlet fra1 and the Hosts website.
	Use []string `json:"use"`
	// Shows says what the entry's test counts.
	Shows string `json:"shows"`
	// Chain is what `use --to` makes a chain of: select and through; from, to and at come from
	// the command. An element names the function as the folder is called.
	Chain *onpath.ChainSpec `json:"chain,omitempty"`
	// Service is what `use` makes of a function that answers by itself: what it answers to.
	Service *onpath.ServiceSpec `json:"service,omitempty"`
	// Function is that of function.yaml.
	Function *onpath.Function `json:"-"`
	// Recipe: the image is built on the machine at hand.
	Recipe bool `json:"-"`
}

// List are all entries, by name.
func List() (list []*Entry, err error) {
	names, err := fs.Glob(functions.Catalogue, "*/"+File)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "onpath-catalogue-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := Extract(dir); err != nil {
		return nil, err
	}
	for _, n := range names {
		e, err := read(dir, path.Dir(n))
		if err != nil {
			return nil, fmt.Errorf("catalogue: %w", err)
		}
		list = append(list, e)
	}
	return list, nil
}

// Find is the entry of that name.
func Find(name string) (*Entry, error) {
	list, err := List()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	missing := onpath.Errorf(onpath.CodeInvalid, "the catalogue has no %q", name)
	missing.Remedy = "onpath catalogue list shows what it has"
	if w := onpath.Nearest(name, names); w != "" {
		missing.Remedy = "did you mean " + w + "?"
	}
	return nil, missing
}

// read reads an entry whose folder was extracted.
func read(dir, name string) (*Entry, error) {
	e := &Entry{Name: name}
	at := path.Join(name, File)
	data, err := functions.Catalogue.ReadFile(at)
	if err != nil {
		return nil, err
	}
	if _, err := manifest.Strict(data, at, e); err != nil {
		return nil, err
	}
	_, err = fs.Stat(functions.Catalogue, path.Join(name, ociimage.RecipeFile))
	e.Recipe = err == nil
	e.Function, err = e.Load(dir)
	return e, err
}

// Page is the entry's README.
func (e *Entry) Page() string {
	b, err := functions.Catalogue.ReadFile(path.Join(e.Name, "README.md"))
	if err != nil {
		return ""
	}
	return string(b)
}

// Load reads the Function of an entry that was extracted.
func (e *Entry) Load(dir string) (*onpath.Function, error) {
	docs, err := manifest.Load([]string{filepath.Join(dir, e.Name, functionFile)}, nil)
	if err != nil {
		return nil, err
	}
	for _, o := range manifest.Objects(docs) {
		if f, ok := o.(*onpath.Function); ok {
			return f, nil
		}
	}
	return nil, errors.New(e.Name + "/" + functionFile + " has no Function")
}

// Extract writes the folders of all functions into dir.
func Extract(dir string) error { return os.CopyFS(dir, functions.Catalogue) }

// Target says what an entry is put to use for.
type Target struct {
	Name     string // of the objects; "": the function's
	Tenant   string // "": the function's
	Set      onpath.Env
	From, To onpath.Endpoints
	Chained  bool // To is given
	At       []string
	Priority int // of the chain
}

// Objects put the extracted entry f to use: the Function first, then the Chain, or the
// Deployment and the Service.
func (e *Entry) Objects(f *onpath.Function, t Target) ([]onpath.Object, error) {
	if t.Name != "" {
		f.Metadata.Name = t.Name
	}
	if t.Tenant != "" {
		f.Metadata.Tenant = t.Tenant
	}
	declared := f.Spec.Parameters
	f.Spec.Parameters = nil // With would write their defaults down
	f.Spec = f.Spec.With(t.Set, nil)
	f.Spec.Parameters = declared
	if err := f.Validate(); err != nil {
		return nil, err
	}
	if errs := f.Spec.CheckParameters(nil); len(errs) > 0 {
		for _, x := range errs {
			x.Object, x.Field = onpath.KeyOf(f).String(), "--set"
			x.Remedy = strings.NewReplacer("env: {", "--set ", ": VALUE}", "=VALUE").Replace(x.Remedy)
		}
		return nil, errs
	}
	objects := []onpath.Object{f}
	meta := onpath.Metadata{Name: f.Metadata.Name, Tenant: f.Metadata.Tenant}
	if t.Chained && e.Chain == nil {
		return nil, onpath.Errorf(onpath.CodeInvalid, "--to: %s answers at addresses of its own; leave it out", e.Name)
	}
	if t.Chained {
		c := &onpath.Chain{Metadata: meta, Spec: *e.Chain}
		c.Spec.From, c.Spec.To = t.From, t.To
		c.Spec.At.Cloudlets, c.Spec.Priority = t.At, t.Priority
		for i := range c.Spec.Through {
			c.Spec.Through[i].Function = onpath.Ref(f.Metadata.Name)
		}
		objects = append(objects, c)
	}
	if e.Service != nil {
		d := &onpath.Deployment{Metadata: meta}
		d.Spec.Function = onpath.Ref(f.Metadata.Name)
		d.Spec.Place.Cloudlets = t.At
		s := &onpath.Service{Metadata: meta, Spec: *e.Service}
		s.Spec.Deployment, s.Spec.Cloudlets = onpath.Ref(f.Metadata.Name), t.At
		objects = append(objects, d, s)
	}
	for _, o := range objects[1:] {
		if err := o.Validate(); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

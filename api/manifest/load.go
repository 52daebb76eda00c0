package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// Load reads and validates all objects in the files, the directories (their
// *.yaml, *.yml and *.json in order of name, without subdirectories) and, for
// "-", stdin. An error is an onpath.Errors with everything that is wrong, in
// the order of the input; then there are no documents.
func Load(paths []string, stdin io.Reader) ([]*Document, error) {
	l := &loader{seen: map[onpath.Key]*Document{}}
	if len(paths) == 0 {
		return nil, onpath.Errors{invalid("", "no file is named", "write -f FILE, -f DIRECTORY or -f -")}
	}
	for _, p := range paths {
		if p == "-" {
			data, err := readLimited(stdin, "stdin")
			l.read(data, err, "stdin", ".")
			continue
		}
		l.path(p)
	}
	if len(l.errs) > 0 {
		return nil, l.errs
	}
	return l.docs, nil
}

// Parse is Load for text that is already in memory: name stands in places, and
// dir is where relative paths start.
func Parse(data []byte, name, dir string) ([]*Document, error) {
	l := &loader{seen: map[onpath.Key]*Document{}}
	l.read(data, nil, name, dir)
	if len(l.errs) > 0 {
		return nil, l.errs
	}
	return l.docs, nil
}

type loader struct {
	docs  []*Document
	seen  map[onpath.Key]*Document
	order int
	errs  onpath.Errors
}

func (l *loader) path(p string) {
	info, err := os.Stat(p)
	if err != nil {
		l.errs = append(l.errs, unreadable(p, err))
		return
	}
	if !info.IsDir() {
		l.file(p)
		return
	}
	entries, err := os.ReadDir(p)
	if err != nil {
		l.errs = append(l.errs, unreadable(p, err))
		return
	}
	found := false
	for _, e := range entries { // ReadDir sorts by name
		if name := e.Name(); !e.IsDir() && !strings.HasPrefix(name, ".") &&
			slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			found = true
			l.file(filepath.Join(p, name))
		}
	}
	if !found {
		l.errs = append(l.errs, invalid(p, "the directory has no *.yaml, *.yml or *.json", ""))
	}
}

func (l *loader) file(p string) {
	f, err := os.Open(p)
	if err != nil {
		l.errs = append(l.errs, unreadable(p, err))
		return
	}
	defer f.Close()
	data, err := readLimited(f, p)
	l.read(data, err, p, filepath.Dir(p))
}

// readLimited reads all of r, but no more than MaxFile.
func readLimited(r io.Reader, name string) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.LimitReader(r, MaxFile+1))
	if err != nil {
		return nil, unreadable(name, err)
	}
	if len(data) > MaxFile {
		return nil, invalid(name+":1:1", fmt.Sprintf("the file is larger than %d MiB, more than any list of resources needs", MaxFile>>20),
			"split it, or put large contents into files named by fromFile or into the image")
	}
	return data, nil
}

// read takes in one file's text. dir is where its relative paths start.
func (l *loader) read(data []byte, err error, name, dir string) {
	var e *onpath.Error
	if errors.As(err, &e) {
		l.errs = append(l.errs, e)
		return
	}
	if e := checkText(data, name); e != nil {
		l.errs = append(l.errs, e)
		return
	}
	docs, errs := parse(data, name)
	if len(docs) == 0 && len(errs) == 0 {
		errs = append(errs, located{err: invalid(name+":1:1", "the file holds no resource", "write apiVersion, kind, metadata and spec")})
	}
	for _, d := range docs {
		d.order = l.order
		l.order++
		if l.order > MaxDocuments {
			errs = append(errs, located{err: invalid(d.Place(), fmt.Sprintf("more than %d objects at once", MaxDocuments),
				"apply them in parts"), position: position{d.Line, d.Column}})
			break
		}
		errs = append(errs, l.finish(d, dir)...)
	}
	l.errs = append(l.errs, inOrder(errs)...)
}

// finish validates a decoded document and adds it, unless its object was
// written before.
func (l *loader) finish(d *Document, dir string) []located {
	forgetServerFields(d.Object)
	errs := readFiles(d, dir)
	resolveImages(d.Object, dir)
	var es onpath.Errors
	if err := d.Object.Validate(); len(errs) == 0 && err != nil && !errors.As(err, &es) {
		es = onpath.Errors{onpath.Errorf(onpath.CodeInvalid, "%w", err)}
	}
	if k := onpath.KeyOf(d.Object); k.Name != "" {
		if first := l.seen[k]; first != nil {
			es = append(es, &onpath.Error{Code: onpath.CodeInvalid, Object: k.String(), Field: "metadata.name",
				Message: "is written twice, first at " + first.Place(), Remedy: "take one of them out"})
		} else {
			l.seen[k] = d
		}
	}
	for _, e := range es {
		p := d.position(e.Field)
		e.Place = fmt.Sprintf("%s:%d:%d", d.File, p.line, p.column)
		errs = append(errs, located{err: e, position: p})
	}
	l.docs = append(l.docs, d)
	return errs
}

func unreadable(p string, err error) *onpath.Error {
	var pe *fs.PathError
	why := err
	if errors.As(err, &pe) {
		why = pe.Err
	}
	e := invalid(p, "cannot be read: "+why.Error(), "name another file, or change its permissions")
	e.Cause = err
	if errors.Is(err, fs.ErrNotExist) {
		e.Message, e.Remedy = "there is no such file or directory", "make it, or correct the name"
		if strings.Contains(p, "://") {
			e.Message, e.Remedy = "files are read, not URLs", "fetch it first: curl -s "+p+" | onpath apply -f -"
		}
	}
	return e
}

func invalid(place, message, remedy string) *onpath.Error {
	return &onpath.Error{Code: onpath.CodeInvalid, Place: place, Message: message, Remedy: remedy}
}

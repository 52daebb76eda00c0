package manifest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/onpath/onpath"
)

// forgetServerFields empties what only the server sets, so that the output of
// `onpath get -o yaml` can be applied again.
func forgetServerFields(o onpath.Object) {
	m := o.Meta()
	m.UID, m.Version, m.Generation, m.Created = "", 0, 0, time.Time{}
	switch o := o.(type) {
	case *onpath.Cloudlet:
		o.Status = onpath.CloudletStatus{}
	case *onpath.Node:
		o.Status = onpath.NodeStatus{}
	case *onpath.Deployment:
		o.Status = onpath.DeploymentStatus{}
	case *onpath.Chain:
		o.Status = onpath.ChainStatus{}
	}
}

// readFiles replaces every fromFile of the object by the file's content.
func readFiles(d *Document, dir string) []located {
	switch o := d.Object.(type) {
	case *onpath.Function:
		var errs []located
		brings := o.Spec.Brings()
		for _, b := range brings.Objects {
			errs = append(errs, d.readObject(b, dir)...)
		}
		for _, b := range brings.Files {
			errs = append(errs, d.readFiles(b.Field, b.Files, b.Lists, dir)...)
		}
		return errs
	case *onpath.Hosts:
		return d.readHosts(o, dir)
	case *onpath.Deployment:
		return d.readFiles("spec.files", o.Spec.Files, false, dir)
	case *onpath.Chain:
		var errs []located
		for i, e := range o.Spec.Through {
			errs = append(errs, d.readFiles(fmt.Sprintf("spec.through[%d].files", i), e.Files, false, dir)...)
		}
		return errs
	}
	return nil
}

// readFiles reads files that become content; lists: large ones may be lists of addresses.
func (d *Document) readFiles(at string, files map[string]onpath.File, lists bool, dir string) (errs []located) {
	paths := make([]string, 0, len(files))
	for p := range files {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		f := files[p]
		if f.FromFile == "" || f.Content != "" { // both: Validate refuses it
			continue
		}
		read := readContent
		if lists {
			read = d.readList
		}
		content, err := read(resolve(f.FromFile, dir))
		if err != nil {
			err.Object = onpath.KeyOf(d.Object).String()
			err.Field = at + "[" + p + "].fromFile"
			err.Place = d.PlaceOf(err.Field)
			errs = append(errs, located{err: err, position: d.position(err.Field)})
			continue
		}
		f.Content, f.FromFile = content, ""
		files[p] = f
	}
	return errs
}

// readObject replaces the path of an object file by what is in it.
func (d *Document) readObject(b onpath.BroughtObject, dir string) []located {
	if len(*b.Code) > 0 || !onpath.LocalImage(*b.Name) {
		return nil
	}
	path := resolve(*b.Name, dir)
	code, err := readCode(path, b)
	if err != nil {
		err.Object, err.Field, err.Place = onpath.KeyOf(d.Object).String(), b.Field, d.PlaceOf(b.Field)
		return []located{{err: err, position: d.position(b.Field)}}
	}
	*b.Name, *b.Code = filepath.Base(path), code
	return nil
}

func readCode(path string, b onpath.BroughtObject) ([]byte, *onpath.Error) {
	f, err := os.Open(path)
	if err != nil {
		e := unreadable("", err)
		e.Message = path + ": " + e.Message
		return nil, e
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, invalid("", path+" is not a file", "")
	}
	code, err := io.ReadAll(io.LimitReader(f, int64(b.Most)+1))
	switch {
	case err != nil:
		return nil, unreadable("", err)
	case len(code) > b.Most:
		return nil, invalid("", fmt.Sprintf("%s has more than %d bytes", path, b.Most), b.Remedy)
	case len(code) == 0:
		return nil, invalid("", path+" is empty", "compile it anew")
	}
	return code, nil
}

func readContent(path string) (string, *onpath.Error) {
	data, failure := readText(path, onpath.MaxFileBytes)
	if failure == nil && len(data) > onpath.MaxFileBytes {
		failure = invalid("", fmt.Sprintf("%s has more than %d bytes", path, onpath.MaxFileBytes), "put large files into the image")
	}
	return data, failure
}

// readListText is the text of a file that is a list of addresses.
func readListText(path string) (string, *onpath.Error) {
	data, failure := readText(path, onpath.MaxListFile)
	if failure == nil && len(data) > onpath.MaxListFile {
		return "", invalid("", fmt.Sprintf("%s has more than %d bytes", path, onpath.MaxListFile), "write fewer, larger prefixes")
	}
	return data, failure
}

// readList is readContent for what may be a list of addresses: a large one is packed.
func (d *Document) readList(path string) (string, *onpath.Error) {
	data, failure := readListText(path)
	if failure != nil || len(data) <= onpath.MaxFileBytes {
		return data, failure
	}
	l, held, err := onpath.ReadAddresses(data)
	var packed string
	if err == nil {
		packed, err = onpath.PackAddresses(l)
	}
	var e *onpath.Error
	switch {
	case errors.As(err, &e):
		e.Message = fmt.Sprintf("%s: %s (only lists of addresses may have more than %d bytes)", path, e.Message, onpath.MaxFileBytes)
		return "", e
	case held > 0:
		d.noteHeld(path, len(l), held)
	}
	return packed, nil
}

// readHosts adds what is in the file of hosts to the addresses.
func (d *Document) readHosts(h *onpath.Hosts, dir string) []located {
	if h.Spec.FromFile == "" {
		return nil
	}
	path := resolve(h.Spec.FromFile, dir)
	data, failure := readListText(path)
	if failure == nil {
		list, held, err := onpath.ReadAddresses(data)
		var e *onpath.Error
		if errors.As(err, &e) {
			e.Message = path + ": " + e.Message
			failure = e
		}
		if held > 0 {
			d.noteHeld(path, len(list), held)
		}
		for _, p := range list {
			h.Spec.Addresses = append(h.Spec.Addresses, onpath.Prefix{Prefix: p})
		}
	}
	if failure != nil {
		failure.Object, failure.Field = onpath.KeyOf(h).String(), "spec.fromFile"
		failure.Place = d.PlaceOf(failure.Field)
		return []located{{err: failure, position: d.position(failure.Field)}}
	}
	h.Spec.FromFile = ""
	return nil
}

func (d *Document) noteHeld(path string, entries, held int) {
	d.Notes = append(d.Notes, fmt.Sprintf("%s: %d entries; %d lines are left out, for others hold what they say", path, entries, held))
}

// readText reads a text of so many bytes, and some of what is beyond.
func readText(path string, most int64) (string, *onpath.Error) {
	f, err := os.Open(path)
	if err != nil {
		e := unreadable("", err)
		e.Message = path + ": " + e.Message
		return "", e
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return "", invalid("", path+" is not a file", "")
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return "", unreadable(path, err)
	case int64(len(data)) <= most && !utf8.Valid(data) || strings.ContainsRune(string(data), 0):
		return "", invalid("", path+" is not text", "put binary files into the image")
	}
	return string(data), nil
}

// resolveImages makes the paths of local images absolute, seen from dir.
func resolveImages(o onpath.Object, dir string) {
	f, ok := o.(*onpath.Function)
	if !ok {
		return
	}
	for _, b := range f.Spec.Brings().Images {
		if !onpath.LocalImage(*b.Image) {
			continue
		}
		if p, err := filepath.Abs(resolve(*b.Image, dir)); err == nil {
			*b.Image = p
		}
	}
}

func resolve(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

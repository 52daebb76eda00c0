// Package store holds what every implementation of onpath.Store shares: how
// keys are written, which metadata the store sets by itself, and the errors it
// gives. The implementations are store/mem and store/etcd; store/storetest is
// their exam.
//
// The store sets Metadata.UID (if a new object has none) and Created (when an object
// comes into being), Generation (when its spec differs from what is stored) and
// Version (the revision of the write). So all writers, users' requests and
// onpath's own alike, get them right by construction.
package store

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// MaxObject is the largest object that is stored, in bytes. It leaves
// room below etcd's default limit of 1.5 MiB for a request.
const MaxObject = 1 << 20

type followUp struct{}

// FollowUp marks writes of what is decided by what is stored: a store takes them for
// longer on a disk that is nearly full, so that deletions have their effect.
func FollowUp(ctx context.Context) context.Context { return context.WithValue(ctx, followUp{}, true) }

// IsFollowUp tells whether FollowUp marked ctx.
func IsFollowUp(ctx context.Context) bool { return ctx.Value(followUp{}) != nil }

type makesRoom struct{}

// MakesRoom marks writes that deletions need, and that are small: a store takes them as it
// takes deletions.
func MakesRoom(ctx context.Context) context.Context { return context.WithValue(ctx, makesRoom{}, true) }

// IsMakesRoom tells whether MakesRoom marked ctx.
func IsMakesRoom(ctx context.Context) bool { return ctx.Value(makesRoom{}) != nil }

type filed struct{}

// Filed marks deletions of what files keep from then on: the public log tells of no end of it.
func Filed(ctx context.Context) context.Context { return context.WithValue(ctx, filed{}, true) }

// IsFiled tells whether Filed marked ctx.
func IsFiled(ctx context.Context) bool { return ctx.Value(filed{}) != nil }

// LogPath begins the paths of records of the public log, which go with every write.
const LogPath = "translog/"

type author struct{}

// By names who has something written, for the public log.
func By(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, author{}, who)
}

// Author is whom By named; "" is onpath itself.
func Author(ctx context.Context) string {
	who, _ := ctx.Value(author{}).(string)
	return who
}

type authors struct{}

// ByEach names who has each object of a batch written that holds the requests of several.
func ByEach(ctx context.Context, who map[onpath.Key]string) context.Context {
	return context.WithValue(ctx, authors{}, who)
}

// AuthorOf is who has an object written.
func AuthorOf(ctx context.Context, k onpath.Key) string {
	if each, ok := ctx.Value(authors{}).(map[onpath.Key]string); ok {
		return each[k]
	}
	return Author(ctx)
}

// Stamp sets the metadata of next that belongs to the store, given what is
// stored under its key now (nil: nothing). Who must know the UID and Generation
// before the write, because a record of the same batch tells them, calls it first:
// the store's own call then changes nothing but Created.
func Stamp(prev, next onpath.Object, now time.Time) {
	m := next.Meta()
	if prev == nil {
		if m.Created, m.Generation = now.UTC().Truncate(time.Millisecond), 1; m.UID == "" {
			m.UID = newUID()
		}
		return
	}
	p := prev.Meta()
	m.UID, m.Created, m.Generation = p.UID, p.Created, p.Generation
	if !SameSpec(prev, next) {
		m.Generation++
	}
}

// SameSpec reports whether the specs of two objects of one kind say the same.
func SameSpec(a, b onpath.Object) bool {
	x, err1 := json.Marshal(field(a, "Spec"))
	y, err2 := json.Marshal(field(b, "Spec"))
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

func field(o onpath.Object, name string) any {
	v := reflect.ValueOf(o)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return nil
	}
	if f := v.Elem().FieldByName(name); f.IsValid() {
		return f.Interface()
	}
	return nil
}

func newUID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// CheckKey refuses keys that are not complete or contain a slash.
func CheckKey(k onpath.Key) error {
	if _, ok := onpath.ParseKind(string(k.Kind)); !ok {
		return fail(onpath.CodeInvalid, k, fmt.Sprintf("there is no kind %q", k.Kind))
	}
	if k.Name == "" || strings.ContainsAny(k.Name+k.Tenant, "/\x00") || k.Kind.Tenanted() != (k.Tenant != "") {
		return fail(onpath.CodeInvalid, k, "the key is not well formed")
	}
	return nil
}

// compressed begins what onpath.Compressed wrote; JSON begins with a brace.
const compressed = "z"

// Encode is the stored form of o: JSON without the version, which is the
// revision of the write itself. Hosts that are too large are compressed.
func Encode(o onpath.Object) ([]byte, error) {
	m := o.Meta()
	version := m.Version
	m.Version = 0
	data, err := json.Marshal(o)
	m.Version = version
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", onpath.KeyOf(o), err)
	}
	if _, hosts := o.(*onpath.Hosts); hosts && len(data) > MaxObject { // onpath.CheckSize has the same rule
		if data, err = onpath.Compressed(data); err != nil {
			return nil, err
		}
		data = append([]byte(compressed), data...)
	}
	if len(data) > MaxObject {
		e := fail(onpath.CodeInvalid, onpath.KeyOf(o), fmt.Sprintf("it is %d bytes long; an object may have %d", len(data), MaxObject))
		e.Remedy = "put large files into the image"
		return nil, e
	}
	return data, nil
}

// Decode reads the stored form, written at revision version.
func Decode(data []byte, version int64) (onpath.Object, error) {
	if z, ok := bytes.CutPrefix(data, []byte(compressed)); ok {
		var err error
		if data, err = io.ReadAll(flate.NewReader(bytes.NewReader(z))); err != nil {
			return nil, fmt.Errorf("read a compressed object: %w", err)
		}
	}
	o, err := onpath.Decode(data)
	if err != nil {
		return nil, err
	}
	o.Meta().Version = version
	return o, nil
}

// Sort orders objects by tenant and name.
func Sort(list []onpath.Object) {
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i].Meta(), list[j].Meta()
		if a.Tenant != b.Tenant {
			return a.Tenant < b.Tenant
		}
		return a.Name < b.Name
	})
}

// NotFound is the error for a key under which nothing is stored.
func NotFound(k onpath.Key) error {
	return &onpath.Error{Code: onpath.CodeNotFound, Object: k.String(), Message: "it does not exist",
		Remedy: "onpath get " + k.Kind.Plural() + " lists what there is"}
}

// Conflict is the error for a write that named version want where have (0: no
// object) is stored.
func Conflict(k onpath.Key, want, have int64) error { return conflict(k.String(), want, have) }

func conflict(object string, want, have int64) error {
	e := &onpath.Error{Code: onpath.CodeConflict, Object: object, Remedy: "read it again and repeat the change"}
	switch {
	case want == 0:
		e.Message = "it exists already"
	case have == 0:
		e.Message = "it was deleted since it was read"
	default:
		e.Message = fmt.Sprintf("it changed since it was read (version %d is now %d)", want, have)
	}
	return e
}

// Compacted is the error for a watch from a revision that is no longer kept.
func Compacted(from int64) error {
	e := onpath.Errorf(onpath.CodeConflict, "changes after revision %d are no longer kept", from)
	e.Remedy = "list again and watch from the revision of the list"
	return e
}

// Ahead is the error for a watch from a revision that the store never had: it was
// installed anew or restored since, and what came then would be missed.
func Ahead(from int64) error {
	e := onpath.Errorf(onpath.CodeConflict, "the store has no revision %d", from)
	e.Remedy = "list again and watch from the revision of the list"
	return e
}

func fail(code onpath.Code, k onpath.Key, message string) *onpath.Error {
	return &onpath.Error{Code: code, Object: k.String(), Message: message}
}

package inline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/sdk"
)

// record is what is kept of an instance.
type record struct {
	Labels map[string]string   `json:"labels"`
	Spec   onpath.FunctionSpec `json:"spec"`
	Lists  []onpath.Condition  `json:"lists,omitempty"`
}

// unusable says that nothing can be made of what is there, at no time.
type unusable struct{ error }

func (u unusable) Unwrap() error { return u.error }

// Adopt implements onpath.Runtime. What cannot be taken over now is left as it is: it
// may be in service. The error says so, and the others are given beside it.
func (d *Driver) Adopt(context.Context) (map[string]onpath.Process, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list, err := os.ReadDir(d.opt.Dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of ebpf functions: %w", err)
	}
	var errs []error
	for _, e := range list {
		id := e.Name()
		if d.runs[id] != nil || !e.IsDir() {
			continue
		}
		p, err := d.adopt(id)
		if errors.As(err, new(unusable)) {
			d.opt.Log.Warn("an ebpf function cannot be taken over; it begins anew", "instance", id, "err", err)
			err = errors.Join(os.RemoveAll(d.dir(id)), os.RemoveAll(d.pins(id)))
		} else if err == nil {
			d.runs[id] = p
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("take over instance %s: %w", id, err))
		}
	}
	out := map[string]onpath.Process{}
	for id, p := range d.runs {
		out[id] = p
	}
	return out, errors.Join(errs...)
}

func (d *Driver) adopt(id string) (*process, error) {
	if err := wholefile.Clean(d.dir(id)); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(d.dir(id), recordFile))
	if errors.Is(err, fs.ErrNotExist) { // a start was cut short
		return nil, unusable{err}
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, unusable{fmt.Errorf("its record: %w", err)}
	}
	f, err := d.known(&r.Spec)
	if err != nil {
		return nil, unusable{err}
	}
	p := &process{d: d, id: id, labels: r.Labels, function: f, spec: r.Spec, exited: make(chan struct{})}
	p.lists.Store(&r.Lists)
	if p.kept, err = json.Marshal(r); err != nil { // as this version writes it
		return nil, err
	}
	if err := p.resume(); err != nil {
		p.abandon()
		bpfobject.CloseTables(p.tables)
		return nil, err
	}
	// The version before may have had smaller tables: the function goes on all the same.
	if err := p.function.checkMemory(r.Spec.EBPF, r.Spec.Resources.Memory); err != nil {
		d.opt.Log.Warn("an ebpf function takes more than its memory, and goes on", "instance", id, "err", err)
		p.say("goes on, although %v", err)
	}
	return p, nil
}

// resume takes up what an earlier process left. Nothing is written to the disk unless
// this version has another object.
func (p *process) resume() error {
	apply, err := p.function.compile(p.spec.EBPF)
	if err != nil {
		return unusable{err}
	}
	there, err := os.ReadFile(p.objectPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, noTables := os.Stat(p.d.pins(p.id))
	fail := func(err error) error {
		if noTables != nil { // nothing is in service: by itself it may begin anew
			return unusable{err}
		}
		return err
	}
	var object *wholefile.Draft
	sum := sha256.Sum256(there)
	other := hex.EncodeToString(sum[:]) != p.function.object.SHA256
	if other {
		if object, err = wholefile.NewDraft(p.objectPath(), p.function.Object, 0o600); err != nil {
			err = fmt.Errorf("keep the object: %w", err)
			if noTables != nil {
				return fail(err)
			}
			return p.resumeFormer(there, err)
		}
	}
	if p.tables, err = p.function.object.OpenTables(p.d.pins(p.id)); err != nil {
		object.Discard()
		return fail(err)
	}
	if other || noTables != nil { // after a restart of the machine, maybe with another kernel
		if err := p.verify(); err != nil {
			object.Discard()
			return unusable{err}
		}
	}
	if err := object.Put(); err != nil {
		return fail(fmt.Errorf("keep the object: %w", err))
	}
	if err := apply(p.tables); err != nil {
		return fail(fmt.Errorf("write the function's configuration: %w", err))
	}
	p.accompany(&p.spec)
	return nil
}

// resumeFormer has the object that is there go on as it is, because this version's
// cannot be kept: why says so whenever it is to be told something.
func (p *process) resumeFormer(code []byte, why error) error {
	o, err := bpfobject.Parse(code)
	if err != nil {
		return errors.Join(why, err)
	}
	if p.tables, err = o.OpenTables(p.d.pins(p.id)); err != nil {
		return errors.Join(why, err)
	}
	p.d.opt.Log.Warn("an ebpf function goes on as the former version had it", "instance", p.id, "err", why)
	former := *p.function
	former.Object, former.object = code, o
	former.Compile = func(sdk.Config) (sdk.Write, error) {
		e := onpath.Errorf(onpath.CodeUnavailable, "it runs as the former version had it: %w", why)
		e.Remedy = "make room on the node's disk and start its agent again"
		return nil, e
	}
	p.function = &former
	p.accompany(&p.spec)
	return nil
}

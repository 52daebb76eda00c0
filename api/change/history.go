package change

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// The history of an object is its last versions, as users wrote them. Each is a record at
// history/KIND/TENANT/NAME/NUMBER (compressed JSON of a wire.ObjectVersion). The record is
// written after the object, in batches that every store takes. A server that dies in between
// leaves the record out; the next write of the object adds it first, without its author.
// An object's history goes with it. Reservations have their own, in the ledger.
const (
	historyPath  = "history/"
	mostVersions = 20      // of one object
	mostHistory  = 1 << 20 // bytes of one object's records
	historyBatch = 60      // records that are written at once
	historyWrite = 4 << 20 // and bytes, if one object's records have no more
)

// history keeps and reads the last versions of objects.
type history struct {
	store  onpath.Store
	log    *slog.Logger
	clock  onpath.Clock
	atOnce int // historyWrite
}

// keptVersion is one version as the store has it.
type keptVersion struct {
	onpath.Record
	version wire.ObjectVersion
}

func historyOf(k onpath.Key) string {
	return historyPath + strings.ToLower(string(k.Kind)) + "/" + k.Tenant + "/" + k.Name + "/"
}

// read gives an object's versions, the oldest first.
func (h *history) read(ctx context.Context, under string) (list []keptVersion, err error) {
	for r := onpath.RecordsUnder(under); ; {
		page, err := h.store.Records(ctx, r)
		if err != nil {
			return nil, err
		}
		for _, record := range page.Records {
			k := keptVersion{Record: record}
			if k.version, err = unpackVersion(record.Value); err != nil {
				h.log.Error("a version in the history of an object cannot be read", "record", record.Path, "error", err)
				continue
			}
			list = append(list, k)
		}
		if r.From, r.Revision = page.Next, page.Revision; r.From == "" {
			return list, nil
		}
	}
}

// note adds what has been written to histories. The objects are in force
// whatever becomes of that.
func (h *history) note(ctx context.Context, by string, all []changed) {
	ctx = context.WithoutCancel(ctx)
	var batch []onpath.Record
	size := 0 // in bytes
	flush := func() {
		if len(batch) == 0 {
			return
		}
		if _, err := h.store.Write(ctx, onpath.Batch{Records: batch}); err != nil {
			h.log.Error("versions are missing in the history of objects", "first", batch[0].Path, "error", err)
		}
		batch, size = nil, 0
	}
	for _, c := range all {
		if c.result.Action == wire.Unchanged || c.change.Key.Kind == onpath.KindReservation {
			continue
		}
		records, err := h.records(ctx, by, c)
		if err != nil {
			h.log.Error("a version is missing in the history of an object", "object", c.change.Key, "error", err)
		}
		more := 0
		for _, r := range records {
			more += len(r.Value)
		}
		if size+more > h.atOnce {
			flush()
		}
		if batch, size = append(batch, records...), size+more; len(batch) >= historyBatch {
			flush()
		}
	}
	flush()
}

// records are the records by which one change becomes part of a history.
func (h *history) records(ctx context.Context, by string, c changed) (records []onpath.Record, err error) {
	under := historyOf(c.change.Key)
	var list []keptVersion
	if c.result.Action != wire.Created {
		if list, err = h.read(ctx, under); err != nil {
			return nil, err
		}
	}
	if c.change.Object == nil {
		for _, k := range list {
			records = append(records, onpath.Record{Path: k.Path, Version: onpath.AnyVersion, Delete: true})
		}
		return records, nil
	}
	number, size := 0, 0
	for _, k := range list {
		number, size = max(number, k.version.Number), size+len(k.Value)
	}
	add := func(by string, o onpath.Object) error {
		number++
		v := wire.ObjectVersion{Number: number, By: by, At: h.clock().UTC(), Object: asWritten(o)}
		if by == "" {
			v.At = o.Meta().Created
		}
		value, err := packVersion(v)
		size += len(value)
		record := onpath.Record{Path: fmt.Sprintf("%s%08d", under, number), Value: value, Version: onpath.AnyVersion}
		list = append(list, keptVersion{record, v})
		records = append(records, list[len(list)-1].Record)
		return err
	}
	if c.prev != nil && (len(list) == 0 || !bytes.Equal(list[len(list)-1].version.Object, asWritten(c.prev))) {
		err = add("", c.prev) // from before there were histories, or left out
	}
	if err == nil {
		err = add(by, c.change.Object)
	}
	for len(list) > mostVersions || len(list) > 1 && size > mostHistory {
		size -= len(list[0].Value)
		records = append(records, onpath.Record{Path: list[0].Path, Version: onpath.AnyVersion, Delete: true})
		list = list[1:]
	}
	return records, err
}

// asWritten is the part of an object that users write, as a file has it.
func asWritten(o onpath.Object) json.RawMessage {
	o = onpath.Clone(o)
	m := o.Meta()
	*m = onpath.Metadata{Name: m.Name, Tenant: m.Tenant, Labels: m.Labels}
	if f := statusOf(o); f.IsValid() {
		f.SetZero()
	}
	data, _ := json.Marshal(o) // every Object marshals
	return data
}

func packVersion(v wire.ObjectVersion) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode(v); err != nil {
		return nil, err
	}
	err := z.Close()
	return b.Bytes(), err
}

func unpackVersion(value []byte) (v wire.ObjectVersion, err error) {
	z, err := gzip.NewReader(bytes.NewReader(value))
	if err != nil {
		return v, err
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(data, &v)
}

// images are the images to which a rollback may go back.
func (h *history) images(ctx context.Context) (images []string, err error) {
	list, err := h.read(ctx, historyPath+strings.ToLower(string(onpath.KindFunction))+"/")
	for _, k := range list {
		if o, err := onpath.Decode(k.version.Object); err == nil {
			images = append(images, imagesOf(o.(*onpath.Function))...)
		}
	}
	return images, err
}

// versions are what is kept of an object, each version with how it differs from the one
// before, and which is in force.
func (h *history) versions(ctx context.Context, now onpath.Object) ([]wire.ObjectVersion, error) {
	list, err := h.read(ctx, historyOf(onpath.KeyOf(now)))
	if err != nil {
		return nil, err
	}
	if n := len(list); n == 0 || !bytes.Equal(list[n-1].version.Object, asWritten(now)) {
		v := wire.ObjectVersion{Number: 1, At: now.Meta().Created, Object: asWritten(now)}
		if n > 0 {
			v.Number = list[n-1].version.Number + 1
		}
		list = append(list, keptVersion{version: v})
	}
	out := make([]wire.ObjectVersion, 0, len(list))
	var before onpath.Object
	for i, e := range list {
		o, err := onpath.Decode(e.version.Object)
		if err != nil {
			return nil, err
		}
		if before != nil {
			_, e.version.Diff = compareObjects(before, o)
		}
		e.version.Current, before = i == len(list)-1, o
		out = append(out, e.version)
	}
	return out, nil
}

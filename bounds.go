package onpath

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"strings"
)

// Bounds of what one object may say, in bytes. A store takes objects of 1 MiB
// (store.MaxObject): what a spec leaves of it is for the status.
const (
	MaxSpec = 960 << 10 // of an object as it is stored, without its status
	MaxText = 1 << 10   // of a message in a status, a report or an event
)

// ClipText shortens a message that is longer than MaxText, between characters.
func ClipText(s string) string {
	if len(s) <= MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxText-len("…")], "") + "…"
}

// Clip shortens the messages of a report.
func (r *NodeReport) Clip() {
	r.PlanError = ClipText(r.PlanError)
	for i := range r.Instances {
		in := &r.Instances[i]
		in.Message, in.Refused, in.Printed = ClipText(in.Message), ClipText(in.Refused), ClipText(in.Printed)
	}
	for i := range r.Conditions {
		r.Conditions[i].Message = ClipText(r.Conditions[i].Message)
	}
	for i := range r.Leases {
		r.Leases[i].Message = ClipText(r.Leases[i].Message)
	}
}

// CheckSize refuses an object whose size leaves no room for its status. The object
// has none, or the one that is stored: that does not count.
func CheckSize(o Object) error {
	data, err := json.Marshal(o)
	if err != nil {
		return Errorf(CodeInvalid, "it cannot be encoded: %w", err)
	}
	var parts struct {
		Status json.RawMessage `json:"status"`
	}
	if len(data) <= MaxSpec || json.Unmarshal(data, &parts) != nil {
		return nil
	}
	if _, ok := o.(*Hosts); ok { // addresses in order take less when they are compressed
		if data, err = Compressed(data); err != nil {
			return err
		}
	}
	if len(data)-len(parts.Status) > MaxSpec {
		e := Errorf(CodeInvalid, "it is %d bytes long as it is stored; an object may have %d", len(data)-len(parts.Status), MaxSpec)
		e.Object, e.Remedy = KeyOf(o).String(), "put large files into the image"
		return e
	}
	return nil
}

// Compressed is an object's JSON as stores keep it where it is large.
func Compressed(data []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := flate.NewWriter(&out, flate.BestSpeed)
	if err == nil {
		_, err = z.Write(data)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return nil, Errorf(CodeInternal, "compress an object: %w", err)
	}
	return out.Bytes(), nil
}

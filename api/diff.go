package api

import (
	"bytes"
	"encoding/json"
	"sort"
	"strconv"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// compareObjects says how next, which was validated, differs from what is
// stored (nil: nothing), in what users write: labels and spec.
func compareObjects(prev, next onpath.Object) (wire.Action, []wire.FieldChange) {
	var diff []wire.FieldChange
	compareFields("", written(prev), written(next), &diff)
	switch {
	case prev == nil:
		return wire.Created, diff
	case len(diff) == 0:
		return wire.Unchanged, nil
	}
	return wire.Updated, diff
}

// written is the part of an object that users write, as plain JSON values.
func written(o onpath.Object) any {
	if o == nil {
		return nil
	}
	data, err := json.Marshal(o)
	if err != nil {
		return nil
	}
	var full struct {
		Metadata struct {
			Labels map[string]any `json:"labels"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&full); err != nil {
		return nil
	}
	out := map[string]any{}
	if len(full.Metadata.Labels) > 0 {
		out["labels"] = full.Metadata.Labels
	}
	if len(full.Spec) > 0 {
		out["spec"] = full.Spec
	}
	return out
}

func compareFields(path string, old, new any, out *[]wire.FieldChange) {
	a, aMap := old.(map[string]any)
	b, bMap := new.(map[string]any)
	if (aMap || old == nil) && (bMap || new == nil) && (aMap || bMap) {
		compareMaps(path, a, b, out)
		return
	}
	x, xList := old.([]any)
	y, yList := new.([]any)
	if xList && yList {
		for i := range max(len(x), len(y)) {
			compareFields(path+"["+strconv.Itoa(i)+"]", at(x, i), at(y, i), out)
		}
		return
	}
	before, after := encoded(old), encoded(new)
	if !bytes.Equal(before, after) {
		*out = append(*out, wire.FieldChange{Field: path, Old: before, New: after})
	}
}

func compareMaps(path string, a, b map[string]any, out *[]wire.FieldChange) {
	names := map[string]bool{}
	for k := range a {
		names[k] = true
	}
	for k := range b {
		names[k] = true
	}
	sorted := make([]string, 0, len(names))
	for k := range names {
		sorted = append(sorted, k)
	}
	sort.Strings(sorted)
	for _, k := range sorted {
		p := k
		if path != "" {
			p = path + "." + k
		}
		compareFields(p, a[k], b[k], out)
	}
}

func at(list []any, i int) any {
	if i < len(list) {
		return list[i]
	}
	return nil
}

// encoded is nil for an absent value.
func encoded(v any) json.RawMessage {
	if v == nil {
		return nil
	}
	data, _ := json.Marshal(v) // came from JSON
	return data
}

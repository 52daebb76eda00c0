package change

import (
	"bytes"
	"encoding/json"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

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
		compareLists(path, x, y, out)
		return
	}
	if s, ok := old.(string); ok {
		if t, ok := new.(string); ok && s != t && len(s)+len(t) > longText {
			compareTexts(path, s, t, out)
			return
		}
	}
	before, after := encoded(old), encoded(new)
	if !bytes.Equal(before, after) {
		*out = append(*out, wire.FieldChange{Field: path, Old: before, New: after})
	}
}

// longText is how many bytes two texts have together from which on only what
// differs in them is shown; kept is how many bytes of a line stay before it.
const (
	longText = 120
	kept     = 20
)

// compareTexts shows of two long texts the lines between what they have in
// common at the beginning and at the end: FIELD, line N.
func compareTexts(path, old, new string, out *[]wire.FieldChange) {
	a, b := strings.Split(old, "\n"), strings.Split(new, "\n")
	first := 0
	for first < min(len(a), len(b)) && a[first] == b[first] {
		first++
	}
	last := 0
	for last < min(len(a), len(b))-first && a[len(a)-1-last] == b[len(b)-1-last] {
		last++
	}
	if len(a) > 1 || len(b) > 1 {
		path += ", line " + strconv.Itoa(first+1)
	}
	x, y := strings.Join(a[first:len(a)-last], "\n"), strings.Join(b[first:len(b)-last], "\n")
	change := wire.FieldChange{Field: path}
	x, y = excerpts(x, y)
	if len(a)-last > first { // else lines were only added
		change.Old = encoded(x)
	}
	if len(b)-last > first {
		change.New = encoded(y)
	}
	*out = append(*out, change)
}

// excerpts leaves out what two texts begin with alike, but for a little.
func excerpts(x, y string) (string, string) {
	same := 0
	for same < min(len(x), len(y)) && x[same] == y[same] {
		same++
	}
	cut := same - kept
	for cut > 0 && !utf8.RuneStart(x[cut]) {
		cut--
	}
	if cut <= 0 {
		return x, y
	}
	return "…" + x[cut:], "…" + y[cut:]
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

// compareLists sets elements against each other so that as little as possible has
// changed. One that goes has its old place in the list, all others their new one.
func compareLists(path string, x, y []any, out *[]wire.FieldChange) {
	for _, p := range align(x, y) {
		i := p.new
		var old, new any
		if p.old >= 0 {
			old = x[p.old]
		}
		if i >= 0 {
			new = y[i]
		} else {
			i = p.old
		}
		compareFields(path+"["+strconv.Itoa(i)+"]", old, new, out)
	}
}

// pair is an element of either list; -1 where a list has none.
type pair struct{ old, new int }

// The cost of what can become of an element. One that changes costs less the more
// of its fields stay, and never more than to go and come.
const (
	costComes   = 1.0
	costGoes    = 1.0
	costChanges = 1.9
)

// mostAligned bounds the table of align; longer lists are compared place by place.
const mostAligned = 1 << 20

// align finds the cheapest way from one list to the other (Wagner and Fischer, 1974).
func align(x, y []any) []pair {
	var out []pair
	if (len(x)+1)*(len(y)+1) > mostAligned {
		for i := range max(len(x), len(y)) {
			out = append(out, pair{placeIn(x, i), placeIn(y, i)})
		}
		return out
	}
	cost := make([][]float64, len(x)+1) // from x[i:] to y[j:]
	change := make([][]float64, len(x))
	for i := len(x); i >= 0; i-- {
		cost[i] = make([]float64, len(y)+1)
		if i < len(x) {
			change[i] = make([]float64, len(y))
		}
		for j := len(y); j >= 0; j-- {
			switch {
			case i == len(x):
				cost[i][j] = float64(len(y)-j) * costComes
			case j == len(y):
				cost[i][j] = float64(len(x)-i) * costGoes
			default:
				change[i][j] = costChanges * (1 - alike(x[i], y[j]))
				cost[i][j] = min(change[i][j]+cost[i+1][j+1], costGoes+cost[i+1][j], costComes+cost[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(x) || j < len(y); {
		switch {
		case i < len(x) && j < len(y) && cost[i][j] == change[i][j]+cost[i+1][j+1]:
			out = append(out, pair{i, j})
			i, j = i+1, j+1
		case j == len(y) || i < len(x) && cost[i][j] == costGoes+cost[i+1][j]:
			out = append(out, pair{i, -1})
			i++
		default:
			out = append(out, pair{-1, j})
			j++
		}
	}
	return out
}

func placeIn(list []any, i int) int {
	if i < len(list) {
		return i
	}
	return -1
}

// alike is the part of two values' fields that is equal: 1 if all is.
func alike(x, y any) float64 {
	a, aMap := x.(map[string]any)
	b, bMap := y.(map[string]any)
	if !aMap || !bMap {
		if reflect.DeepEqual(x, y) {
			return 1
		}
		return 0
	}
	same, all := 0, len(b)
	for k, v := range a {
		w, there := b[k]
		switch {
		case !there:
			all++
		case reflect.DeepEqual(v, w):
			same++
		}
	}
	if all == 0 {
		return 1
	}
	return float64(same) / float64(all)
}

// encoded is nil for an absent value.
func encoded(v any) json.RawMessage {
	if v == nil {
		return nil
	}
	data, _ := json.Marshal(v) // came from JSON
	return data
}

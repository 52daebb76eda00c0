package onpath

import "time"

// WatchSpec names the flows to be watched, each direction by itself.
type WatchSpec struct {
	// Tuples as packets carry them. A port of 0 stands for any.
	Tuples []Tuple `json:"tuples"`
	// For is how long the watch goes on without being asked for again; at most
	// MaxWatch, and that by default.
	For Duration `json:"for,omitempty"`
}

// MaxWatches is how many tuples can be watched on a node at one time.
const MaxWatches = 16

// MaxWatch is the longest time that a watch goes on by itself.
const MaxWatch = time.Minute

// FlowCounters are the hop counters of one tuple's packets on one node since its
// watch began, by the vport as in Counters.
type FlowCounters struct {
	Tuple  Tuple                     `json:"tuple"`
	Vports map[VportID]VportCounters `json:"vports"`
}

// WatchRequest asks where a flow's packets end.
type WatchRequest struct {
	// Tuple of the packets; a source port of 0 stands for any flow.
	Tuple   Tuple  `json:"tuple"`
	Gateway string `json:"gateway,omitempty"`
}

// FlowWatch is one look at a watched flow: what each hop counted since the watch
// began.
type FlowWatch struct {
	Time    time.Time  `json:"time"`
	Tuple   Tuple      `json:"tuple"`
	Live    bool       `json:"live"` // a flow entry of it was found
	Forward []WatchHop `json:"forward"`
	Reverse []WatchHop `json:"reverse"`
	// Elsewhere is what was counted where the flow is not expected.
	Elsewhere []WatchHop `json:"elsewhere,omitempty"`
	Warnings  []Note     `json:"warnings,omitempty"`
}

// WatchHop is what became of a flow's packets at one hop. In = Out + Dropped +
// Function, and Out of one hop is In of the next one less Lost there.
type WatchHop struct {
	Kind  HopKind `json:"kind"`
	Node  string  `json:"node"`
	Vport VportID `json:"vport,omitempty"`
	Name  string  `json:"name,omitempty"`
	// Mode of an instance: what is mirror is given copies, the flow goes past it.
	Mode Mode `json:"mode,omitempty"`
	// Tuple of the packets that leave the hop, where an element changed it.
	Tuple *Tuple `json:"tuple,omitempty"`
	// In came to the hop, Out left it towards the next one. For an instance, In
	// is what it was given, Out what it gave back.
	In  Tally `json:"in"`
	Out Tally `json:"out"`
	// Dropped by the data path here, with reasons.
	Dropped map[DropReason]uint64 `json:"dropped,omitempty"`
	// Function is what an instance was given and did not give back: dropped by
	// the function, or under way in it. Negative: it sent more.
	Function int64 `json:"function,omitempty"`
	// Lost is what left the hop before and did not come here: under way, or lost
	// between two nodes.
	Lost    int64  `json:"lost,omitempty"`
	Message string `json:"message,omitempty"`
}

// Lease is For within its bounds.
func (s WatchSpec) Lease() time.Duration {
	if d := time.Duration(s.For); d > 0 && d < MaxWatch {
		return d
	}
	return MaxWatch
}

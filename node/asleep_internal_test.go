package node

import (
	"context"
	"errors"
	"testing"

	"github.com/onpath/onpath"
)

// countedPath counts a packet for each vport.
type countedPath struct{ onpath.Datapath }

func (countedPath) Counters(context.Context) (*onpath.Counters, error) {
	return &onpath.Counters{Vports: map[onpath.VportID]onpath.VportCounters{16: {}, 17: {}, 18: {}}}, nil
}

// keeping is an agent with sleeping instances, which keep up to limit.
func keeping() (*Agent, func(tenant string, v onpath.VportID, limit onpath.Size) *kept) {
	a := &Agent{opt: Options{Datapath: countedPath{}}, punts: newPunts(), room: keptRoom{of: map[string]int{}}}
	return a, func(tenant string, v onpath.VportID, limit onpath.Size) *kept {
		k := &kept{come: make(chan struct{}, 1), room: &a.room, tenant: tenant, lost: a.punts.lose}
		k.begin(limit)
		a.punts.keep([]onpath.VportID{v}, k)
		return k
	}
}

func punted(v onpath.VportID, length int) onpath.Punted {
	return onpath.Punted{Vport: v, Frame: make([]byte, length)}
}

// notKept is how many packets for a vport were lost.
func notKept(t *testing.T, a *Agent, v onpath.VportID) uint64 {
	t.Helper()
	c, err := a.counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c.Vports[v].NotKept
}

// TestKeptShares: one tenant's sleeping instances, however many and however much comes for
// them, leave room for another's.
func TestKeptShares(t *testing.T) {
	a, keeps := keeping()
	for v := range onpath.VportID(8) {
		keeps("flooded", 100+v, onpath.MaxHold)
	}
	const length = 60000
	for v := range onpath.VportID(8) {
		for range int(onpath.MaxHold)/length + 1 {
			a.punts.take(punted(100+v, length))
		}
	}
	other := keeps("other", 16, onpath.MaxHold)
	count := int(onpath.MaxHold) / (length + onpath.HeldOverhead)
	for range count {
		a.punts.take(punted(16, length))
	}
	if n := notKept(t, a, 16); n != 0 || len(other.frames) != count {
		t.Errorf("of %d packets for another tenant %d were kept, %d told as lost", count, len(other.frames), n)
	}
	if a.room.all > mostKept {
		t.Errorf("%d bytes are kept", a.room.all)
	}
	for _, k := range a.punts.sleepers {
		k.empty()
	}
	if a.room.all != 0 || len(a.room.of) != 0 {
		t.Errorf("all is let go, and %d bytes count as kept, %v", a.room.all, a.room.of)
	}
}

// failing are the vports whose device is gone.
type failing map[onpath.VportID]bool

func (f failing) open(v onpath.VportID) (onpath.Inlet, error) {
	if f[v] {
		return nil, errors.New("its device is gone")
	}
	return refusing{}, nil
}

// refusing is an inlet that takes nothing.
type refusing struct{}

func (refusing) Deliver([]byte) error { return errors.New("no buffer space") }
func (refusing) Open() error          { return nil }
func (refusing) Close() error         { return nil }

// TestNotKept: what is handed to the agent for an instance and does not get there is counted,
// whatever became of it.
func TestNotKept(t *testing.T) {
	a, keeps := keeping()
	lost := func(why string, v onpath.VportID, want uint64) {
		t.Helper()
		if n := notKept(t, a, v); n != want {
			t.Errorf("%s: %d packets for vport %d are told as lost, must be %d", why, n, v, want)
		}
	}
	a.punts.take(punted(16, 100))
	lost("nobody keeps yet", 16, 1)
	k := keeps("acme", 16, onpath.MinHold)
	for range 5 { // of which 4 fit
		a.punts.take(punted(16, 3800))
	}
	lost("more than hold", 16, 2)
	k.empty()
	lost("it does not start", 16, 6)
	a.punts.take(punted(16, 100))
	lost("it waits for its next start", 16, 7)
	k = keeps("acme", 17, onpath.MinHold)
	a.punts.take(punted(17, 100))
	_ = k.letIn(failing{17: true}.open, []onpath.VportID{17})
	lost("it has no device", 17, 1)
	k = keeps("acme", 18, onpath.MinHold)
	a.punts.take(punted(18, 100))
	_ = k.letIn(failing{}.open, []onpath.VportID{18})
	a.punts.take(punted(18, 100))
	lost("its device takes nothing", 18, 2)
	a.punts.forget([]onpath.VportID{18})
	lost("another instance has the vport", 18, 0)
}

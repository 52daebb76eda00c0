package punt

import (
	"errors"
	"testing"

	"github.com/onpath/onpath"
)

// keeping is a punt port with sleeping instances, which keep up to limit.
func keeping() (*Port, func(tenant string, v onpath.VportID, limit onpath.Size) *Kept) {
	a := New()
	return a, func(tenant string, v onpath.VportID, limit onpath.Size) *Kept {
		k := a.NewKept(tenant)
		k.Begin(limit)
		a.Keep([]onpath.VportID{v}, k)
		return k
	}
}

func punted(v onpath.VportID, length int) onpath.Punted {
	return onpath.Punted{Vport: v, Frame: make([]byte, length)}
}

// notKept is how many packets for a vport were lost.
func notKept(t *testing.T, a *Port, v onpath.VportID) uint64 {
	t.Helper()
	c := &onpath.Counters{Vports: map[onpath.VportID]onpath.VportCounters{16: {}, 17: {}, 18: {}}}
	a.AddLost(c)
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
			a.take(punted(100+v, length))
		}
	}
	other := keeps("other", 16, onpath.MaxHold)
	count := int(onpath.MaxHold) / (length + onpath.HeldOverhead)
	for range count {
		a.take(punted(16, length))
	}
	if n := notKept(t, a, 16); n != 0 || len(other.frames) != count {
		t.Errorf("of %d packets for another tenant %d were kept, %d told as lost", count, len(other.frames), n)
	}
	if a.room.all > mostKept {
		t.Errorf("%d bytes are kept", a.room.all)
	}
	for _, k := range a.sleepers {
		k.Empty()
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
	a.take(punted(16, 100))
	lost("nobody keeps yet", 16, 1)
	k := keeps("acme", 16, onpath.MinHold)
	for range 5 { // of which 4 fit
		a.take(punted(16, 3800))
	}
	lost("more than hold", 16, 2)
	k.Empty()
	lost("it does not start", 16, 6)
	a.take(punted(16, 100))
	lost("it waits for its next start", 16, 7)
	k = keeps("acme", 17, onpath.MinHold)
	a.take(punted(17, 100))
	_ = k.LetIn(failing{17: true}.open, []onpath.VportID{17})
	lost("it has no device", 17, 1)
	k = keeps("acme", 18, onpath.MinHold)
	a.take(punted(18, 100))
	_ = k.LetIn(failing{}.open, []onpath.VportID{18})
	a.take(punted(18, 100))
	lost("its device takes nothing", 18, 2)
	a.Forget([]onpath.VportID{18})
	lost("another instance has the vport", 18, 0)
}

package peers

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// judged tries one liveness: a peer that answers or not, rounds that are late or not.
type judged struct {
	liveness
	now time.Time
}

func (j *judged) step(answers bool, took time.Duration, states map[onpath.VportID]onpath.VportState) (changed bool) {
	j.asked++
	if answers {
		j.hear(onpath.PeerReply{Number: j.asked, States: states})
	}
	j.now = j.now.Add(took)
	return j.round(j.now, took)
}

func (j *judged) steps(n int, answers bool, took time.Duration) (changes int) {
	for range n {
		if j.step(answers, took, nil) {
			changes++
		}
	}
	return changes
}

func TestLiveness(t *testing.T) {
	j := &judged{now: time.Unix(1000, 0)}
	if j.steps(100, false, askEvery) > 0 || j.lost || !j.takes(5) {
		t.Error("a peer that never answered was judged")
	}
	j.steps(3, true, askEvery)
	if j.steps(missedLost-1, false, askEvery) > 0 {
		t.Error("lost too early")
	}
	j.steps(1, true, askEvery)
	begin := j.now
	for !j.lost {
		j.step(false, askEvery, nil)
	}
	if d := j.now.Sub(begin); d > 150*time.Millisecond {
		t.Errorf("lost after %s", d)
	}
	if j.takes(5) {
		t.Error("a lost peer is used")
	}
	j.steps(backAfter-1, true, askEvery)
	j.steps(1, false, askEvery)
	if j.steps(backAfter-1, true, askEvery) > 0 {
		t.Error("back too early")
	}
	if j.steps(1, true, askEvery) != 1 || j.lost {
		t.Error("does not come back")
	}
	j.steps(missedLost, false, askEvery)
	if j.steps(2*backAfter-1, true, askEvery) > 0 || j.steps(1, true, askEvery) != 1 {
		t.Error("a peer that comes and goes must be good for longer")
	}
	j.now = j.now.Add(time.Hour)
	j.steps(missedLost, false, askEvery)
	if j.steps(backAfter, true, askEvery) != 1 {
		t.Error("one that was good for an hour must be trusted as at first")
	}
}

// TestLivenessLate: rounds that come late are no evidence, but not for ever.
func TestLivenessLate(t *testing.T) {
	j := &judged{now: time.Unix(1000, 0)}
	j.steps(3, true, askEvery)
	if j.steps(missedLate-1, false, 10*askEvery) > 0 {
		t.Error("lost by its own lateness")
	}
	if j.steps(1, false, 10*askEvery) != 1 {
		t.Error("never lost while late")
	}
}

// TestLivenessSlow: a long round trip is no loss.
func TestLivenessSlow(t *testing.T) {
	j := &judged{now: time.Unix(1000, 0)}
	for n := range uint64(200) {
		j.asked++
		if n >= 20 {
			j.hear(onpath.PeerReply{Number: j.asked - 20})
		}
		j.now = j.now.Add(askEvery)
		if j.round(j.now, askEvery) {
			t.Fatal("lost, though it answers")
		}
	}
}

// TestLivenessStates: what the peer says of its vports counts at once, the newest
// answer most.
func TestLivenessStates(t *testing.T) {
	up := map[onpath.VportID]onpath.VportState{5: onpath.VportUp}
	closed := map[onpath.VportID]onpath.VportState{5: onpath.VportClosed}
	j := &liveness{asked: 10}
	if !j.takes(5) {
		t.Error("what was not asked must be left to the plan")
	}
	if !j.hear(onpath.PeerReply{Number: 8, States: closed}) || j.takes(5) {
		t.Error("closed, and used")
	}
	if j.hear(onpath.PeerReply{Number: 7, States: up}) || j.takes(5) {
		t.Error("an overtaken answer counts")
	}
	if !j.hear(onpath.PeerReply{Number: 9, States: up}) || !j.takes(5) {
		t.Error("open, and not used")
	}
	if j.hear(onpath.PeerReply{Number: 11, States: closed}) {
		t.Error("an answer to no question counts")
	}
}

// TestLivenessOpened: the plan's word that a vport was opened counts more than
// answers to what was asked before, and less than later ones.
func TestLivenessOpened(t *testing.T) {
	closed := map[onpath.VportID]onpath.VportState{5: onpath.VportClosed}
	j := &judged{now: time.Unix(1000, 0)}
	j.step(true, askEvery, closed)
	if j.takes(5) {
		t.Fatal("a closed vport is used")
	}
	r := newDetector(nil, nil)
	peer := onpath.Peer{Node: "n2", Address: netip.MustParseAddr("192.0.2.2")}
	r.peers[peer.Address] = &j.liveness
	plan := func(s onpath.VportState) *onpath.NodePlan {
		var p onpath.NodePlan
		p.Datapath.Peers = []onpath.Peer{peer}
		p.Datapath.Vports = []onpath.Vport{{ID: 5, Kind: onpath.VportRemote, Peer: "n2", State: s}}
		return &p
	}
	r.follow(plan(onpath.VportUp))
	r.follow(plan(onpath.VportUp))
	if j.takes(5) {
		t.Error("a plan that says nothing new outdid the peer's answer")
	}
	r.follow(plan(onpath.VportClosed))
	r.follow(plan(onpath.VportUp))
	if !j.takes(5) {
		t.Error("not used although the plan opened it")
	}
	j.hear(onpath.PeerReply{Number: j.asked, States: closed})
	if !j.takes(5) {
		t.Error("an answer from before the opening closed it")
	}
	j.step(true, askEvery, closed)
	if j.takes(5) {
		t.Error("used although the peer closed it after the opening")
	}
}

// TestConfigOfLostPeer: the vports of a peer that does not answer are closed, and said to
// be away; one that its node says is closed is there.
func TestConfigOfLostPeer(t *testing.T) {
	peers := []onpath.Peer{{Node: "n2", Address: netip.MustParseAddr("192.0.2.2")}, {Node: "n3", Address: netip.MustParseAddr("192.0.2.3")}}
	plan := &onpath.NodePlan{}
	plan.Datapath.Peers = peers
	plan.Datapath.Vports = []onpath.Vport{
		{ID: 5, Kind: onpath.VportRemote, Peer: "n2", State: onpath.VportUp}, {ID: 6, Kind: onpath.VportRemote, Peer: "n3", State: onpath.VportUp},
	}
	plan.Datapath.Groups = []onpath.Group{{Members: []onpath.Member{{Vport: 5}, {Vport: 6}}}}
	d := newDetector(nil, nil)
	d.peers[peers[0].Address] = &liveness{ever: true, lost: true}
	d.peers[peers[1].Address] = &liveness{ever: true, states: map[onpath.VportID]onpath.VportState{6: onpath.VportClosed}}
	c, _ := onpath.Effective(plan, &onpath.LocalState{Peers: d.peerStates(peers)})
	for n, away := range []bool{true, false} {
		if v := c.Vports[n]; v.State != onpath.VportClosed || v.Away != away {
			t.Errorf("vport %d is %s, away %v", v.ID, v.State, v.Away)
		}
	}
}

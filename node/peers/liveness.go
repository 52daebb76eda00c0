package peers

import (
	"time"

	"github.com/onpath/onpath"
)

// How peers' data paths are watched. A node that dies right after an answer is
// lost askEvery·(missedLost+1) later: 180 ms.
const (
	askEvery   = 30 * time.Millisecond
	missedLost = 5 // rounds in a row without any answer
	// A round that begins this much late is the asker's own fault: answers may
	// have waited as it did. It takes missedLate of them.
	lateBy     = askEvery
	missedLate = 40
	// A lost peer is used again after so many rounds in a row with an answer;
	// each loss within flapping of the one before doubles it, up to backMost.
	backAfter = 5
	backMost  = 320
	flapping  = time.Minute
)

// liveness decides about one peer from questions and answers. Time comes in as a
// parameter.
type liveness struct {
	asked, heard uint64 // numbers of the newest question and answer
	before       uint64 // heard, at the last round
	missed, late int    // rounds since the last answer
	ever         bool   // it has answered; one that never has may be too old to
	silent       int    // rounds without any answer ever
	lost         bool
	lostAt       time.Time
	good, need   int // rounds with an answer since it was lost, and how many it takes
	// states of its vports as it told them last.
	states map[onpath.VportID]onpath.VportState
	// since is the number of the newest question that had been asked about a vport
	// when the plan opened it: answers to it, or to older ones, tell the past.
	since map[onpath.VportID]uint64
}

// hear takes an answer; it reports whether a state is new.
func (j *liveness) hear(a onpath.PeerReply) (changed bool) {
	if a.Number > j.asked || a.Number+uint64(missedLate) < j.heard {
		return false // not asked, or long overtaken
	}
	newest := a.Number >= j.heard
	j.ever, j.heard = true, max(j.heard, a.Number)
	if !newest {
		return false
	}
	if j.states == nil {
		j.states = map[onpath.VportID]onpath.VportState{}
	}
	for v, s := range a.States {
		if a.Number <= j.since[v] {
			continue
		}
		delete(j.since, v)
		if old, known := j.states[v]; old != s || !known {
			changed = true
		}
		j.states[v] = s
	}
	return changed
}

// round is called every askEvery, before the next question; took is the time
// since the last round. It reports whether the peer was lost or is back.
func (j *liveness) round(now time.Time, took time.Duration) (changed bool) {
	progress := j.heard != j.before
	j.before = j.heard
	if j.asked == 0 || !j.ever {
		j.silent++
		return false
	}
	if progress {
		j.missed, j.late = 0, 0
		j.good++
		if j.lost && j.good >= j.need {
			j.lost = false
			return true
		}
		return false
	}
	j.good = 0
	if took > askEvery+lateBy {
		j.late++
	} else {
		j.missed++
	}
	if j.lost || j.missed < missedLost && j.late < missedLate {
		return false
	}
	if j.need == 0 || now.Sub(j.lostAt) >= flapping {
		j.need = backAfter
	} else {
		j.need = min(2*j.need, backMost)
	}
	j.lost, j.lostAt = true, now
	return true
}

// opened is the plan's word that a vport takes packets from now on, given after
// the peer had opened it: what the peer said before is forgotten.
func (j *liveness) opened(v onpath.VportID) {
	delete(j.states, v)
	if j.since == nil {
		j.since = map[onpath.VportID]uint64{}
	}
	j.since[v] = j.asked
}

// indirectAfter is how long a peer that has never answered is asked before VXLAN counts as no way
// to it: its agent may begin at the same time.
const indirectAfter = 10 * time.Second

// indirect reports whether VXLAN in clear text is no way to the peer.
func (j *liveness) indirect() bool {
	return !j.ever && time.Duration(j.silent)*askEvery >= indirectAfter
}

// takes reports whether packets may be sent to a vport of the peer. What it has
// not been asked yet is left to the plan; after a loss it must have said so.
func (j *liveness) takes(v onpath.VportID) bool {
	if j.lost {
		return false
	}
	s, known := j.states[v]
	return !known || s != onpath.VportClosed
}

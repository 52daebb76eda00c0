package paths

import (
	"math"
	"time"
)

// MaxRounds is the highest number of rounds that is told apart. 16 rounds of slow start
// carry more than 900 MB; beyond that, bandwidth and not the round trip decides.
const MaxRounds = 16

// maxBytes is beyond any transfer: 1 PiB.
const maxBytes = 1 << 50

const (
	initialWindow = 10 // segments, RFC 6928
	// fullSegment is what a frame of 1,500 bytes carries beside IPv4, TCP and TCP's timestamps.
	fullSegment = 1448
	// segment is what counts of one along relays. A relay sends what has come so far, so the
	// kernel finds its window unfilled now and then, and widens it by less: by 38 segments
	// instead of 40 in the third round of measured chains.
	segment = 1400
)

// Rounds returns how many rounds of slow start a transfer along relays takes: the window begins with ten
// segments and doubles with each round (§V.A).
func Rounds(bytes int64) int { return roundsOf(bytes, segment) }

func roundsOf(bytes, segment int64) int {
	carried, window := int64(0), initialWindow*segment
	for r := 1; r < MaxRounds; r++ {
		if carried += window; bytes <= carried {
			return r
		}
		window *= 2
	}
	return MaxRounds
}

// Bytes returns the largest transfer along relays that takes that many rounds.
func Bytes(rounds int) int64 {
	if rounds >= MaxRounds {
		return maxBytes
	}
	return initialWindow * segment * (1<<max(rounds, 0) - 1)
}

// transfer is the paper's model of the data's way: half the sum for the first round, and
// the longest leg for each further one (§III.B).
func transfer(sum, longest time.Duration, rounds int) time.Duration {
	return sum/2 + time.Duration(rounds-1)*longest
}

// Transfer is the time from the sender's first byte to the receiver's last.
func (p Path) Transfer(rounds int) time.Duration { return transfer(p.Sum, p.Max, rounds) }

// Request is the time from the client's SYN until its request reaches the origin. Each
// relay opens its next leg when the SYN reaches it, so the request waits at a relay only
// where the next leg is still being opened.
func Request(legs []time.Duration) time.Duration {
	var syn, request time.Duration
	for _, leg := range legs {
		request = max(request, syn+leg) + leg/2
		syn += leg / 2
	}
	return request
}

// Time is how long a client waits for the whole answer: connection, request and transfer.
// One leg is a transfer without relays.
func Time(legs []time.Duration, bytes int64) time.Duration {
	var p Path
	for _, leg := range legs {
		p.Sum += leg
		p.Max = max(p.Max, leg)
	}
	rounds := Rounds(bytes)
	if len(legs) == 1 {
		rounds = roundsOf(bytes, fullSegment)
	}
	return Request(legs) + p.Transfer(rounds)
}

// Row is what an ingress node knows of one egress node: the best path for each number of
// rounds. Paths that are best for several stand once.
type Row struct {
	Paths []Path
	best  [MaxRounds + 1]uint8
}

// Best returns the path for a transfer of that many bytes.
func (r *Row) Best(bytes int64) *Path { return r.ForRounds(Rounds(bytes)) }

// ForRounds returns the path for that many rounds; nil where no path is known.
func (r *Row) ForRounds(rounds int) *Path {
	if len(r.Paths) == 0 {
		return nil
	}
	return &r.Paths[r.best[min(max(rounds, 1), MaxRounds)]]
}

// Row picks, for each number of rounds, the path with the shortest transfer; among equals
// the one with the fewest relays.
func (f *Front) Row(from, to int) Row {
	var row Row
	at := map[int]uint8{}
	for rounds := 1; rounds <= MaxRounds; rounds++ {
		option := f.Best(from, to, rounds)
		if option < 0 {
			return row
		}
		k, ok := at[option]
		if !ok {
			k = uint8(len(row.Paths))
			at[option] = k
			row.Paths = append(row.Paths, f.Path(from, to, option))
		}
		row.best[rounds] = k
	}
	return row
}

// Best returns the number of the best option, -1 where the pair has none.
func (f *Front) Best(from, to, rounds int) int {
	best, least, fewest := -1, time.Duration(math.MaxInt64), 0
	for option := range f.Options(from, to) {
		sum, longest, legs := f.Sizes(from, to, option)
		// Twice the time, so that halves are not rounded away.
		took := sum + 2*time.Duration(rounds-1)*longest
		if took < least || took == least && legs < fewest {
			best, least, fewest = option, took, legs
		}
	}
	return best
}

package loadbalancer

import (
	"hash/fnv"
	"slices"
)

// maglevSlots is the size of the look-up table, a prime. Shares of 256 backends
// differ by some hundredths at most.
const maglevSlots = 65537

// noBackend stands in slots while there is no backend.
const noBackend = 0xffff

// candidate is a backend that takes part in the table.
type candidate struct {
	name   string // decides which slots it prefers
	place  uint16
	weight uint32
}

// maglev fills the look-up table of Maglev (Eisenbud et al., NSDI 2016, §3.4): the
// candidates take turns, as many as their weights say, and each takes the first
// free one of the slots in an order of its own. The table depends on names and
// weights alone, not on their order or on who was there before. Weighted rendezvous
// hashing would move no more flows, but looks at every backend for every new flow.
func maglev(list []candidate) []uint16 {
	table := slices.Repeat([]uint16{noBackend}, maglevSlots)
	list = slices.DeleteFunc(slices.Clone(list), func(c candidate) bool { return c.weight == 0 })
	if len(list) == 0 {
		return table
	}
	slices.SortFunc(list, func(a, b candidate) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	var heaviest uint32
	for _, c := range list {
		heaviest = max(heaviest, c.weight)
	}
	at, skip, credit := make([]uint64, len(list)), make([]uint64, len(list)), make([]uint32, len(list))
	for i, c := range list {
		at[i] = hashOf("offset", c.name) % maglevSlots
		skip[i] = hashOf("skip", c.name)%(maglevSlots-1) + 1
	}
	for left := maglevSlots; ; {
		for i, c := range list {
			if credit[i] += c.weight; credit[i] < heaviest {
				continue
			}
			credit[i] -= heaviest
			for table[at[i]] != noBackend {
				at[i] = (at[i] + skip[i]) % maglevSlots
			}
			table[at[i]] = c.place
			if left--; left == 0 {
				return table
			}
		}
	}
}

func hashOf(what, name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(what))
	h.Write([]byte{0})
	h.Write([]byte(name))
	x := h.Sum64() // FNV mixes its last bytes little
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

package tlogtiles

import (
	"bytes"
	"fmt"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Reader reads a log that somebody else serves and believes nothing but its key.
type Reader struct {
	// Fetch gets what is at a path below the log's address.
	Fetch    func(path string) ([]byte, error)
	Verifier note.Verifier
}

// Checkpoint is the newest tree, and the note that says so.
func (r *Reader) Checkpoint() (tlog.Tree, []byte, error) {
	signed, err := r.Fetch("checkpoint")
	if err != nil {
		return tlog.Tree{}, nil, err
	}
	t, err := r.Open(signed)
	return t, signed, err
}

// Open reads a signed checkpoint.
func (r *Reader) Open(signed []byte) (tlog.Tree, error) {
	n, err := note.Open(signed, note.VerifierList(r.Verifier))
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("the checkpoint is not signed by %s: %w", r.Verifier.Name(), err)
	}
	origin, t, err := ParseCheckpoint(n.Text)
	if err == nil && origin != r.Verifier.Name() {
		err = fmt.Errorf("the checkpoint is of %s, not of %s", origin, r.Verifier.Name())
	}
	return t, err
}

// Fork is a log that has forgotten or changed something.
type Fork struct{ Old, New tlog.Tree }

// Error says so.
func (f *Fork) Error() string {
	return fmt.Sprintf("the log with %d entries is no continuation of the one with %d: entries were changed, dropped or hidden",
		f.New.N, f.Old.N)
}

// Continues proves that the new tree begins with the old one.
func (r *Reader) Continues(old, next tlog.Tree) error {
	if old.N > next.N {
		return &Fork{old, next}
	}
	if old.N == 0 {
		return nil
	}
	h := next.Hash
	if old.N < next.N {
		var err error
		if h, err = tlog.TreeHash(old.N, r.hashes(next)); err != nil {
			return err
		}
	}
	if h != old.Hash {
		return &Fork{old, next}
	}
	return nil
}

// Each calls yield with the entries from to the end of a tree, each proved to be in it.
func (r *Reader) Each(t tlog.Tree, from int64, yield func(index int64, entry []byte) error) error {
	hashes := r.hashes(t)
	for from < t.N {
		tile := tlog.Tile{H: Height, L: 0, N: from >> Height, W: 1 << Height}
		first := tile.N << Height
		tile.W = int(min(int64(tile.W), t.N-first))
		data, err := r.Fetch(EntriesPath(tile))
		if err != nil {
			return err
		}
		list, err := Entries(data)
		if err != nil {
			return err
		}
		if len(list) < tile.W {
			return fmt.Errorf("entries %d to %d are lacking", first+int64(len(list)), first+int64(tile.W)-1)
		}
		var at []int64
		for i := from; i < first+int64(tile.W); i++ {
			at = append(at, tlog.StoredHashIndex(0, i))
		}
		proved, err := hashes.ReadHashes(at)
		if err != nil {
			return err
		}
		for i, h := range proved {
			entry := list[from-first+int64(i)]
			if tlog.RecordHash(entry) != h {
				return fmt.Errorf("entry %d is not the one that was signed", from+int64(i))
			}
			if err := yield(from+int64(i), entry); err != nil {
				return err
			}
		}
		from = first + int64(tile.W)
	}
	return nil
}

// Root computes the hash of a tree from its entries alone.
func (r *Reader) Root(t tlog.Tree) error {
	var stored []tlog.Hash
	read := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, k := range at {
			out[i] = stored[k]
		}
		return out, nil
	})
	err := r.Each(t, 0, func(i int64, entry []byte) error {
		more, err := tlog.StoredHashes(i, bytes.Clone(entry), read)
		stored = append(stored, more...)
		return err
	})
	if err != nil || t.N == 0 {
		return err
	}
	h, err := tlog.TreeHash(t.N, read)
	if err == nil && h != t.Hash {
		err = fmt.Errorf("the %d entries have another hash than the checkpoint", t.N)
	}
	return err
}

func (r *Reader) hashes(t tlog.Tree) tlog.HashReader { return tlog.TileHashReader(t, tiles{r}) }

// tiles implements tlog.TileReader.
type tiles struct{ *Reader }

func (tiles) Height() int { return Height }

func (t tiles) ReadTiles(list []tlog.Tile) (out [][]byte, err error) {
	for _, tile := range list {
		data, err := t.Fetch(Path(tile))
		if err != nil {
			return nil, err
		}
		if len(data) != tile.W*tlog.HashSize {
			return nil, fmt.Errorf("%s has %d bytes, not %d", Path(tile), len(data), tile.W*tlog.HashSize)
		}
		out = append(out, data)
	}
	return out, nil
}

func (tiles) SaveTiles([]tlog.Tile, [][]byte) {}

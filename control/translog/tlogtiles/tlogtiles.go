// Package tlogtiles lays a transparency log out as C2SP's tlog-tiles has it: checkpoint,
// tiles of 256 hashes, bundles of 256 entries. The hashes and their proofs are those of
// golang.org/x/mod/sumdb/tlog.
package tlogtiles

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// Height is that of tiles: 2⁸ hashes.
const Height = 8

// Path is where a tile is; entries is where the entries below a tile of level 0 are.
func Path(t tlog.Tile) string { return "tile/" + strings.TrimPrefix(t.Path(), "tile/8/") }

// EntriesPath is where the entries of a tile of level 0 are.
func EntriesPath(t tlog.Tile) string {
	return "tile/entries/" + strings.TrimPrefix(t.Path(), "tile/8/0/")
}

// ParsePath reads what Path and EntriesPath wrote.
func ParsePath(path string) (t tlog.Tile, entries, ok bool) {
	rest, ok := strings.CutPrefix(path, "tile/")
	if !ok {
		return t, false, false
	}
	if r, is := strings.CutPrefix(rest, "entries/"); is {
		rest, entries = "0/"+r, true
	}
	t, err := tlog.ParseTilePath("tile/8/" + rest)
	return t, entries, err == nil && t.L >= 0
}

// Checkpoint is the text of a checkpoint, which is then signed as a note.
func Checkpoint(origin string, t tlog.Tree) string {
	return fmt.Sprintf("%s\n%d\n%s\n", origin, t.N, base64.StdEncoding.EncodeToString(t.Hash[:]))
}

// ParseCheckpoint reads such a text.
func ParseCheckpoint(text string) (origin string, t tlog.Tree, err error) {
	lines := strings.SplitN(text, "\n", 4)
	if len(lines) < 4 {
		return "", t, errors.New("it is no checkpoint")
	}
	n, err1 := strconv.ParseInt(lines[1], 10, 64)
	h, err2 := base64.StdEncoding.DecodeString(lines[2])
	if err1 != nil || err2 != nil || n < 0 || len(h) != len(t.Hash) {
		return "", t, errors.New("the checkpoint has no size and hash")
	}
	t.N = n
	copy(t.Hash[:], h)
	return lines[0], t, nil
}

// MaxEntry is the largest entry, in bytes.
const MaxEntry = 1<<16 - 1

// AppendEntry adds an entry to a bundle.
func AppendEntry(bundle, entry []byte) []byte {
	return append(binary.BigEndian.AppendUint16(bundle, uint16(len(entry))), entry...)
}

// Entries takes a bundle apart.
func Entries(bundle []byte) (out [][]byte, err error) {
	for len(bundle) > 0 {
		if len(bundle) < 2 {
			return nil, errors.New("a bundle of entries is cut off")
		}
		n := int(binary.BigEndian.Uint16(bundle))
		if bundle = bundle[2:]; len(bundle) < n {
			return nil, errors.New("a bundle of entries is cut off")
		}
		out, bundle = append(out, bundle[:n:n]), bundle[n:]
	}
	return out, nil
}

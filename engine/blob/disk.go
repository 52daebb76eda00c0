package blob

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
)

// A block: magic (4), sum of the rest of the header (4), the blob's number (8), the block's
// place in it (4), bytes in use (4), their sum (4), zeros; then the bytes.
const (
	blockSize  = 16 << 10
	headerSize = 32
	payload    = blockSize - headerSize
	magic      = 0x6f6e6231 // "onb1"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	id     uint64
	index  uint32
	length uint32
	sum    uint32
}

func (h header) bytes() []byte {
	b := make([]byte, headerSize)
	binary.BigEndian.PutUint32(b, magic)
	binary.BigEndian.PutUint64(b[8:], h.id)
	binary.BigEndian.PutUint32(b[16:], h.index)
	binary.BigEndian.PutUint32(b[20:], h.length)
	binary.BigEndian.PutUint32(b[24:], h.sum)
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

func parseHeader(b []byte) (h header, ok bool) {
	h = header{
		id: binary.BigEndian.Uint64(b[8:]), index: binary.BigEndian.Uint32(b[16:]),
		length: binary.BigEndian.Uint32(b[20:]), sum: binary.BigEndian.Uint32(b[24:]),
	}
	return h, binary.BigEndian.Uint32(b) == magic && h.id != 0 && h.length <= payload &&
		binary.BigEndian.Uint32(b[4:]) == crc32.Checksum(b[8:headerSize], castagnoli)
}

func (s *Store) writeBlock(at int32, id uint64, index uint32, body []byte) error {
	b := append(header{id, index, uint32(len(body)), crc32.Checksum(body, castagnoli)}.bytes(), body...)
	n, err := s.f.WriteAt(b, int64(at)*blockSize)
	if err != nil || n < len(b) {
		return errors.Join(ErrFull, err)
	}
	return nil
}

func (s *Store) readBlock(at int32, id uint64, index uint32) ([]byte, error) {
	b := make([]byte, blockSize)
	n, err := s.f.ReadAt(b, int64(at)*blockSize)
	if err != nil && err != io.EOF || n < headerSize {
		return nil, errors.Join(ErrDamaged, err)
	}
	h, ok := parseHeader(b)
	if !ok || h.id != id || h.index != index || headerSize+int(h.length) > n {
		return nil, ErrDamaged
	}
	body := b[headerSize : headerSize+h.length]
	if crc32.Checksum(body, castagnoli) != h.sum {
		return nil, ErrDamaged
	}
	return body, nil
}

// headOf is what the first block says: size (8), lengths of name and words (4 each), both.
// Callers hold the store's lock.
func headOf(b *Blob) []byte {
	out := binary.BigEndian.AppendUint64(nil, uint64(b.size))
	out = binary.BigEndian.AppendUint32(out, uint32(len(b.key)))
	out = binary.BigEndian.AppendUint32(out, uint32(len(b.about)))
	return append(append(out, b.key...), b.about...)
}

func (b *Blob) parseHead(body []byte) bool {
	if len(body) < 16 {
		return false
	}
	key, about := binary.BigEndian.Uint32(body[8:]), binary.BigEndian.Uint32(body[12:])
	if key > MaxKey || about > MaxAbout || len(body) != 16+int(key+about) {
		return false
	}
	b.size = int64(binary.BigEndian.Uint64(body))
	b.key, b.about = string(body[16:16+key]), slices.Clone(body[16+key:])
	return b.size >= 0
}

// scan takes up the blobs of a file that are whole.
func (s *Store) scan() error {
	end, err := s.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	s.used = int(min((end+blockSize-1)/blockSize, int64(s.blocks)))
	s.end = int32(s.used)
	found := map[uint64]map[uint32]int32{}
	b := make([]byte, headerSize)
	for at := range int32(s.used) {
		if n, _ := s.f.ReadAt(b, int64(at)*blockSize); n < headerSize {
			continue
		}
		if h, ok := parseHeader(b); ok {
			if found[h.id] == nil {
				found[h.id] = map[uint32]int32{}
			}
			found[h.id][h.index] = at
			s.lastID = max(s.lastID, h.id)
		}
	}
	taken := make([]bool, s.used)
	for _, b := range s.wholes(found) {
		if old := s.byKey[b.key]; old != nil {
			s.order.Remove(old.place)
			for _, at := range old.chain {
				taken[at] = false
			}
		}
		b.place = s.order.PushBack(b)
		s.byKey[b.key] = b
		for _, at := range b.chain {
			taken[at] = true
		}
	}
	for at := range s.used {
		if !taken[at] {
			s.free = append(s.free, int32(at))
		}
	}
	return nil
}

// wholes are the blobs of which all blocks are there, the first written first.
func (s *Store) wholes(found map[uint64]map[uint32]int32) (out []*Blob) {
	for id, blocks := range found {
		at, ok := blocks[0]
		if !ok {
			continue
		}
		body, err := s.readBlock(at, id, 0)
		b := &Blob{s: s, id: id, whole: true, changed: make(chan struct{})}
		if err != nil || !b.parseHead(body) {
			continue
		}
		n := (b.size + payload - 1) / payload
		b.chain = []int32{at}
		for i := int64(1); i <= n && ok; i++ {
			at, ok = blocks[uint32(i)]
			b.chain = append(b.chain, at)
		}
		if ok {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(x, y *Blob) int { return cmp.Compare(x.id, y.id) })
	return out
}

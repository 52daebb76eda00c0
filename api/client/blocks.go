package client

import (
	"encoding/binary"
	"io"
)

// maxBlock is the largest pcapng block that is waited for; a packet's is at most
// some 64 KiB, or 512 where segments are joined.
const maxBlock = 16 << 20

// blocks passes on pcapng block by block (draft-ietf-opsawg-pcapng §3.1), so that a
// capture that breaks off, wherever it does, leaves what programs can read.
type blocks struct {
	w     io.Writer
	order binary.ByteOrder // of the section; nil before the first
	held  []byte           // of a block that is not whole yet
	loose bool             // these are no blocks: pass on what comes
}

const (
	sectionHeader = 0x0a0d0d0a // the same in both orders
	orderMagic    = 0x1a2b3c4d
)

func (b *blocks) Write(p []byte) (int, error) {
	b.held = append(b.held, p...)
	whole := 0
	for !b.loose {
		n := b.next(b.held[whole:])
		if n == 0 || whole+n > len(b.held) {
			break
		}
		whole += n
	}
	if b.loose {
		whole = len(b.held)
	}
	if whole == 0 {
		return len(p), nil
	}
	_, err := b.w.Write(b.held[:whole])
	b.held = append(b.held[:0], b.held[whole:]...)
	return len(p), err
}

// next is the length of the block that p begins with; 0: more of it is needed.
func (b *blocks) next(p []byte) int {
	if len(p) < 12 {
		return 0
	}
	if binary.LittleEndian.Uint32(p) == sectionHeader {
		b.order = binary.BigEndian
		if binary.LittleEndian.Uint32(p[8:]) == orderMagic {
			b.order = binary.LittleEndian
		}
	}
	if b.order == nil {
		b.loose = true
		return 0
	}
	n := b.order.Uint32(p[4:])
	if n < 12 || n > maxBlock || n%4 != 0 {
		b.loose = true
		return 0
	}
	return int(n)
}

// end passes on what is left at a good end, which is nothing but where these were no
// blocks.
func (b *blocks) end() error {
	if len(b.held) == 0 {
		return nil
	}
	_, err := b.w.Write(b.held)
	b.held = nil
	return err
}

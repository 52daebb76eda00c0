package relay

// chunkSize is the unit in which frames in flight are stored. It holds at
// least three of the largest frames.
const chunkSize = 256 << 10

// chunk stores frames one behind the other.
type chunk struct {
	bytes []byte
	used  int
	live  int // frames in it that have not been sent
}

// inFlight is a frame on its way.
type inFlight struct {
	depart int64 // ns
	frame  []byte
	in     *chunk
}

// fifo holds the frames of one direction in the order of their departure. It
// re-uses its memory, so that a busy line makes no garbage.
type fifo struct {
	ring    []inFlight // a power of two
	head, n int
	chunks  int      // in use
	current *chunk   // the one that is being filled
	spare   []*chunk // for re-use
	limit   int      // chunks
}

func newFIFO(limit int64) *fifo {
	return &fifo{ring: make([]inFlight, 256), limit: int(limit/chunkSize) + 2}
}

// space returns room for a frame of at most n bytes, or nil if the fifo is
// full. The frame becomes part of the fifo by push.
func (f *fifo) space(n int) []byte {
	if f.current == nil || len(f.current.bytes)-f.current.used < n {
		if f.chunks >= f.limit {
			return nil
		}
		f.retire(f.current)
		f.current = f.fresh()
	}
	return f.current.bytes[f.current.used : f.current.used+n]
}

func (f *fifo) fresh() *chunk {
	f.chunks++
	if k := len(f.spare); k > 0 {
		c := f.spare[k-1]
		f.spare = f.spare[:k-1]
		c.used = 0
		return c
	}
	return &chunk{bytes: make([]byte, chunkSize)}
}

// retire puts a chunk aside if nothing in it is still needed.
func (f *fifo) retire(c *chunk) {
	if c == nil || c.live > 0 {
		return
	}
	f.chunks--
	if len(f.spare) < 16 {
		f.spare = append(f.spare, c)
	}
}

// push appends the first n bytes of what space returned last.
func (f *fifo) push(n int, depart int64) {
	c := f.current
	if f.n == len(f.ring) {
		f.grow()
	}
	f.ring[(f.head+f.n)&(len(f.ring)-1)] = inFlight{depart, c.bytes[c.used : c.used+n : c.used+n], c}
	f.n++
	c.used += n
	c.live++
}

func (f *fifo) grow() {
	bigger := make([]inFlight, 2*len(f.ring))
	for i := range f.n {
		bigger[i] = *f.at(i)
	}
	f.ring, f.head = bigger, 0
}

// at is the i-th frame from the head.
func (f *fifo) at(i int) *inFlight { return &f.ring[(f.head+i)&(len(f.ring)-1)] }

// drop takes n frames from the head; their bytes must no longer be used.
func (f *fifo) drop(n int) {
	for range n {
		e := f.at(0)
		c := e.in
		*e = inFlight{}
		f.head = (f.head + 1) & (len(f.ring) - 1)
		f.n--
		if c.live--; c.live == 0 {
			if c == f.current {
				c.used = 0
			} else {
				f.retire(c)
			}
		}
	}
}

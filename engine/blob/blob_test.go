package blob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func newFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func open(t *testing.T, f File, size int64) *Store {
	t.Helper()
	s, err := Open(f, size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func content(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func put(s *Store, key string, b []byte) error {
	w, err := s.Create(key, []byte("about "+key))
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	return w.Whole()
}

// get reads all of a blob.
func get(t *testing.T, s *Store, key string) ([]byte, error) {
	t.Helper()
	b := s.Find(key)
	if b == nil {
		return nil, ErrGone
	}
	var out []byte
	p := make([]byte, 10_000)
	for {
		n, err := b.ReadAt(t.Context(), p, int64(len(out)))
		if out = append(out, p[:n]...); err == io.EOF {
			return out, nil
		} else if err != nil {
			return out, err
		}
	}
}

// TestCrash: what was whole is there after a crash, with all bytes and words; what was being
// written, let go or replaced is not.
func TestCrash(t *testing.T) {
	f := newFile(t)
	s := open(t, f, 64*blockSize)
	sizes := []int{0, 1, payload - 1, payload, payload + 1, 5 * payload}
	for i, n := range sizes {
		if err := put(s, fmt.Sprint("whole", i), content(byte(i), n)); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range [][]byte{content(7, 3*payload), content(8, 100)} {
		if err := put(s, "replaced", b); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := put(s, "let go", content(9, 40_000)); err != nil || !s.Delete("let go") {
		t.Fatal(err)
	}
	w, err := s.Create("half", nil)
	if err == nil {
		_, err = w.Write(content(10, 2*payload+5))
	}
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, f, 64*blockSize)
	for i, n := range sizes {
		key := fmt.Sprint("whole", i)
		if b, err := get(t, s, key); err != nil || !bytes.Equal(b, content(byte(i), n)) || string(s.Find(key).About()) != "about "+key {
			t.Errorf("%s: %d bytes of %d, %v", key, len(b), n, err)
		}
	}
	if b, err := get(t, s, "replaced"); err != nil || !bytes.Equal(b, content(8, 100)) {
		t.Errorf("the replaced one has %d bytes, %v", len(b), err)
	}
	if s.Find("half") != nil || s.Find("let go") != nil {
		t.Error("what was not whole, or let go, is there")
	}
	if st := s.Status(); st.Blobs != len(sizes)+1 || st.Blocks != 7+1+1+1+2+5+1 {
		t.Errorf("%+v", st)
	}
}

// TestDamage: whatever byte the disk turns, no other bytes than those written come out; the blob
// is gone, and its neighbour is not.
func TestDamage(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	f := newFile(t)
	for range 60 {
		s := open(t, f, 16*blockSize)
		for i := range 3 {
			if err := put(s, fmt.Sprint(i), content(byte(i), 2*payload-100)); err != nil {
				t.Fatal(err)
			}
		}
		at := r.Int64N(9 * blockSize)
		b := []byte{0}
		_, _ = f.ReadAt(b, at)
		b[0] ^= 1 << r.IntN(8)
		_, _ = f.WriteAt(b, at)
		if r.IntN(2) == 0 {
			s = open(t, f, 16*blockSize)
		}
		lost := 0
		for i := range 3 {
			if b, err := get(t, s, fmt.Sprint(i)); err != nil {
				lost++
			} else if !bytes.Equal(b, content(byte(i), 2*payload-100)) {
				t.Fatalf("byte %d turned: other bytes came out of %d", at, i)
			}
		}
		if lost > 1 {
			t.Fatalf("byte %d turned: %d blobs are gone", at, lost)
		}
	}
}

// TestRoom: the blob goes that was not asked for longest, and such as nobody reads first.
func TestRoom(t *testing.T) {
	s := open(t, newFile(t), 8*blockSize)
	for i := range 4 { // two blocks each
		if err := put(s, fmt.Sprint(i), content(byte(i), 100)); err != nil {
			t.Fatal(err)
		}
	}
	release := s.Find("0").Hold() // and now 1 is the oldest
	s.Find("1")
	if err := put(s, "4", content(4, 100)); err != nil {
		t.Fatal(err)
	}
	for key, there := range map[string]bool{"0": true, "1": true, "2": false, "3": true, "4": true} {
		if (s.Find(key) != nil) != there {
			t.Errorf("%s is there: %t", key, !there)
		}
	}
	release()
	w, err := s.Create("too large", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content(5, 9*blockSize)); !errors.Is(err, ErrFull) {
		t.Errorf("more than there may be: %v", err)
	}
	if st := s.Status(); st.Blobs != 0 || st.Blocks != 0 {
		t.Errorf("after it %+v", st)
	}
}

// full is a disk that has no room behind its end.
type full struct {
	*os.File
	end int64
}

func (f *full) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.end {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, off)
}

// TestFullDisk: where the disk is full earlier than the quota is, what there is serves on.
func TestFullDisk(t *testing.T) {
	s := open(t, &full{newFile(t), 10 * blockSize}, 1000*blockSize)
	for i := range 50 {
		if err := put(s, fmt.Sprint(i), content(byte(i), payload)); err != nil {
			t.Fatalf("blob %d: %v", i, err)
		}
		if b, err := get(t, s, fmt.Sprint(i)); err != nil || !bytes.Equal(b, content(byte(i), payload)) {
			t.Fatalf("blob %d: %d bytes, %v", i, len(b), err)
		}
	}
	if st := s.Status(); st.Blocks > 10 || st.Blobs < 3 {
		t.Errorf("%+v", st)
	}
}

// TestFollow: who reads what is being written waits for more, and ends with it.
func TestFollow(t *testing.T) {
	s := open(t, newFile(t), 64*blockSize)
	want := content(1, 20*payload)
	w, err := s.Create("k", nil)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 3)
	for range 3 {
		go func() {
			b, err := get(t, s, "k")
			done <- result{b, err}
		}()
	}
	for at := 0; at < len(want); at += 7_001 {
		if _, err := w.Write(want[at:min(at+7_001, len(want))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Whole(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if r := <-done; r.err != nil || !bytes.Equal(r.b, want) {
			t.Errorf("%d bytes, %v", len(r.b), r.err)
		}
	}
	w, _ = s.Create("dropped", nil)
	go func() {
		b, err := get(t, s, "dropped")
		done <- result{b, err}
	}()
	_, _ = w.Write(want[:10])
	time.Sleep(time.Millisecond)
	w.Drop()
	if r := <-done; !errors.Is(r.err, ErrGone) {
		t.Errorf("of a dropped one: %d bytes, %v", len(r.b), r.err)
	}
}

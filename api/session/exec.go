package session

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/onpath/onpath"
)

// Within an exec stream both sides send frames: a type (1 byte), a length (4
// bytes, big endian) and that many bytes. From the caller come stdin (empty: no
// more) and resize; from the node stdout, stderr, and at the end exit or error.
// The server passes frames through without looking at them, so the caller of
// the API and the node speak it with each other.

// ExecProtocol is the upgrade under which the API offers an exec stream.
const ExecProtocol = "onpath-exec/1"

// The frame types.
const (
	frameStdin  byte = 0
	frameStdout byte = 1
	frameStderr byte = 2
	frameExit   byte = 3 // exit code, 4 bytes, big endian
	frameResize byte = 4 // rows and columns, 2 bytes each, big endian
	frameError  byte = 5 // an onpath.Error as JSON
)

const maxFrame = 64 << 10

// frames writes frames whole, also from several goroutines.
type frames struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frames) write(kind byte, payload []byte) error {
	head := append(make([]byte, 0, 5+len(payload)), kind)
	frame := append(binary.BigEndian.AppendUint32(head, uint32(len(payload))), payload...)
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(frame)
	return err
}

func (f *frames) resize(s onpath.WindowSize) error {
	return f.write(frameResize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Rows), s.Columns))
}

// to is a writer whose bytes become frames of one kind.
func (f *frames) to(kind byte) io.Writer { return frameWriter{f, kind} }

type frameWriter struct {
	f    *frames
	kind byte
}

func (w frameWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		chunk := b[:min(len(b), maxChunk)]
		if err := w.f.write(w.kind, chunk); err != nil {
			return n, err
		}
		n += len(chunk)
		b = b[len(chunk):]
	}
	return n, nil
}

func readFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("an exec frame of %d bytes; at most %d are possible", n, maxFrame)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(r, payload)
	return head[0], payload, err
}

// ExecIO is what a command is connected to, on either side.
type ExecIO struct {
	Stdin  io.Reader // nil: none
	Stdout io.Writer
	Stderr io.Writer
	Resize <-chan onpath.WindowSize // nil: none
}

// ServeExec is the node's side: it runs the command with the stream's input and
// output, and sends its exit code.
func ServeExec(ctx context.Context, stream io.ReadWriter, run func(ctx context.Context, e ExecIO) (exit int, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &frames{w: stream}
	stdin, feed := io.Pipe()
	resize := make(chan onpath.WindowSize, 1)
	go func() {
		err := readInput(ctx, stream, feed, resize)
		_ = feed.CloseWithError(err)
		if err != io.EOF {
			cancel() // the caller is gone
		}
	}()
	exit, err := run(ctx, ExecIO{Stdin: stdin, Stdout: out.to(frameStdout), Stderr: out.to(frameStderr), Resize: resize})
	_ = stdin.CloseWithError(io.ErrClosedPipe)
	if err != nil {
		body, _ := json.Marshal(worded(err)) // strings only
		return out.write(frameError, body)
	}
	return out.write(frameExit, binary.BigEndian.AppendUint32(nil, uint32(int32(exit))))
}

// readInput hands on the caller's frames until the stream ends. After an empty
// stdin frame the command reads an end.
func readInput(ctx context.Context, r io.Reader, feed *io.PipeWriter, resize chan onpath.WindowSize) error {
	for {
		kind, payload, err := readFrame(r)
		if err != nil {
			return fmt.Errorf("the caller went away: %w", err)
		}
		switch {
		case kind == frameStdin && len(payload) == 0:
			_ = feed.Close()
		case kind == frameStdin:
			// An error means that the command reads no more; it may still run.
			_, _ = feed.Write(payload)
		case kind == frameResize && len(payload) == 4:
			latest(resize, onpath.WindowSize{Rows: binary.BigEndian.Uint16(payload), Columns: binary.BigEndian.Uint16(payload[2:])})
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// latest replaces what waits in a channel of one place.
func latest(c chan onpath.WindowSize, size onpath.WindowSize) {
	select {
	case <-c:
	default:
	}
	c <- size
}

// RunExec is the caller's side: it connects e to the command at the other end of
// stream and returns its exit code.
func RunExec(ctx context.Context, stream io.ReadWriteCloser, e ExecIO) (exit int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	out := &frames{w: stream}
	go sendInput(ctx, out, e)
	for {
		kind, payload, err := readFrame(stream)
		switch {
		case err != nil && ctx.Err() != nil:
			return 0, ctx.Err()
		case err != nil:
			var known *onpath.Error
			if errors.As(err, &known) {
				return 0, known
			}
			return 0, onpath.Errorf(onpath.CodeUnavailable, "the command's connection broke: %w", err)
		case kind == frameStdout && e.Stdout != nil:
			_, err = e.Stdout.Write(payload)
		case kind == frameStderr && e.Stderr != nil:
			_, err = e.Stderr.Write(payload)
		case kind == frameExit && len(payload) == 4:
			return int(int32(binary.BigEndian.Uint32(payload))), nil
		case kind == frameError:
			failed := &onpath.Error{Code: onpath.CodeInternal, Message: "the command could not be run"}
			_ = json.Unmarshal(payload, failed)
			return 0, failed
		}
		if err != nil {
			return 0, err
		}
	}
}

// sendInput sends a size that is known already first: what comes behind input
// that the command does not read yet has to wait with it.
func sendInput(ctx context.Context, out *frames, e ExecIO) {
	select {
	case s, ok := <-e.Resize:
		if !ok {
			e.Resize = nil
		} else if out.resize(s) != nil {
			return
		}
	default:
	}
	if e.Resize != nil {
		go func() {
			for {
				select {
				case s, ok := <-e.Resize:
					if !ok || out.resize(s) != nil {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	if e.Stdin != nil {
		if _, err := io.Copy(out.to(frameStdin), e.Stdin); err != nil {
			return
		}
	}
	_ = out.write(frameStdin, nil)
}

// FailExec tells the caller's side that the command's stream broke.
func FailExec(w io.Writer, err error) error {
	body, _ := json.Marshal(worded(err)) // strings only
	return (&frames{w: w}).write(frameError, body)
}

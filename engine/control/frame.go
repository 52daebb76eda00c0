package control

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// maxFrame bounds a request or an answer, in bytes; maxFiles the files beside it.
const (
	maxFrame = 16 << 20
	maxFiles = 64
)

// Request is what an engine is asked. Op is "attach" (Device, with files: the AF_XDP
// socket, its frames, its link, then sockets to serve by), "disk" (Disk, with a file for the
// blobs), "set" (Config), "serve" (Served, with the sockets of new ports) or "status". After
// "supply" the engine asks, and is given connections.
type Request struct {
	Op     string  `json:"op"`
	Device *Device `json:"device,omitempty"`
	Config *Config `json:"config,omitempty"`
	// Served are all the ports to serve.
	Served []onpath.ServedPort `json:"served,omitempty"`
	Disk   onpath.Size         `json:"disk,omitempty"` // that the blobs may have
}

// Want is a connection that a module needs: to a host and port, or to where the owner is told
// something.
type Want struct {
	ID     uint64 `json:"id"`
	Dial   string `json:"dial,omitempty"`
	Notify bool   `json:"notify,omitempty"`
}

// Given answers a Want, with the connection as a file, or with why there is none.
type Given struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"`
	// Refused: the node connects nobody to this address, whatever answers there.
	Refused bool `json:"refused,omitempty"`
}

// RefusedError is of a connection that Given says to be refused.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap gives the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// Answer is an engine's.
type Answer struct {
	Code   onpath.Code `json:"code,omitempty"` // of an error
	Error  string      `json:"error,omitempty"`
	Status *Status     `json:"status,omitempty"`
}

// Write sends one message, and files with it.
func Write(c *net.UnixConn, message any, files []*os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, _, err := c.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	_, err = c.Write(body)
	return err
}

// Read receives one message, and the files that came with it, which are the caller's.
func Read(c *net.UnixConn, message any) (files []*os.File, err error) {
	head := make([]byte, 4)
	space := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, nspace, _, _, err := c.ReadMsgUnix(head, space)
	if err != nil {
		return nil, err
	}
	if files, err = received(space[:nspace]); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			files = nil
		}
	}()
	if n == 0 {
		return files, io.EOF
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxFrame {
		return files, fmt.Errorf("a message of %d bytes; %d is the most", size, maxFrame)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c, body); err != nil {
		return files, err
	}
	if err := json.Unmarshal(body, message); err != nil {
		return files, fmt.Errorf("decode a message: %w", err)
	}
	return files, nil
}

func received(space []byte) ([]*os.File, error) {
	if len(space) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(space)
	if err != nil {
		return nil, fmt.Errorf("read files beside a message: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return files, fmt.Errorf("read files beside a message: %w", err)
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

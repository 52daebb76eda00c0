package signalling

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// MakeKey makes an Ed25519 key in a file (PEM, PKCS #8).
func MakeKey(file string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, wholefile.Write(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

// ReadKey reads the key that MakeKey made.
func ReadKey(file string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if p, _ := pem.Decode(b); p != nil {
		if k, err := x509.ParsePKCS8PrivateKey(p.Bytes); err == nil {
			if key, ok := k.(ed25519.PrivateKey); ok {
				return key, nil
			}
		}
	}
	return nil, onpath.Errorf(onpath.CodeInvalid, "%s holds no Ed25519 key in PEM; onpath signal key FILE makes one", file)
}

// Nodes are the keys of nodes that a publisher knows, kept in a file: a line for each, of a
// name and a key in base64. A node that is not there is believed the first time, and written
// down.
type Nodes struct {
	file  string
	keys  map[string][][]byte
	fresh []string // lines
}

// OpenNodes reads the file; there may be none yet.
func OpenNodes(file string) (*Nodes, error) {
	n := &Nodes{file: file, keys: map[string][][]byte{}}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	number := 0
	for line := range strings.Lines(string(b)) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		var key onpath.PublicKey
		if len(words) != 2 || key.UnmarshalText([]byte(words[1])) != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid,
				"%s, line %d: it is not a node's name and its key in base64; mend or remove it", file, number)
		}
		n.keys[words[0]] = append(n.keys[words[0]], key)
	}
	return n, nil
}

// Known are the keys of a node.
func (n *Nodes) Known(node string) [][]byte { return n.keys[node] }

// Learn takes up a node's key.
func (n *Nodes) Learn(node string, key []byte) {
	known := slices.ContainsFunc(n.keys[node], func(k []byte) bool { return bytes.Equal(k, key) })
	if words := strings.Fields(node); known || len(words) != 1 || words[0] != node || node[0] == '#' {
		return // the file could not have it
	}
	n.keys[node] = append(n.keys[node], bytes.Clone(key))
	n.fresh = append(n.fresh, node+" "+base64.StdEncoding.EncodeToString(key))
}

// Save writes down what was learnt, and gives these lines.
func (n *Nodes) Save() (fresh []string, err error) {
	if len(n.fresh) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(filepath.Dir(n.file), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(n.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprint(f, strings.Join(n.fresh, "\n")+"\n")
	fresh, n.fresh = n.fresh, nil
	return fresh, errors.Join(err, f.Close())
}

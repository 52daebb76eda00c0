// Package sealed keeps values of secrets so that only the server can read them: what is
// stored, shown, compared, logged and backed up is sealed.
package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
)

// Box seals with a key.
type Box struct {
	aead    cipher.AEAD
	numbers []byte // key of the nonces
}

// New makes a Box from a server's secret.
func New(secret []byte) *Box {
	derive := func(use string) []byte {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte("onpath sealed values: " + use))
		return h.Sum(nil)
	}
	block, err := aes.NewCipher(derive("key"))
	if err != nil {
		panic("sealed: " + err.Error()) // of a key of another length
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("sealed: " + err.Error())
	}
	return &Box{aead: aead, numbers: derive("nonce")}
}

// Place is where alone the value under a key of a secret opens.
func Place(tenant, name, key string) string { return tenant + "/" + name + "/" + key }

const version = "v1:"

// Seal seals a value for one place, where alone it can be opened. One value of one place
// always becomes the same text: who applies it again changes nothing.
func (b *Box) Seal(place, value string) string {
	h := hmac.New(sha256.New, b.numbers)
	h.Write([]byte(place + "\x00" + value))
	nonce := h.Sum(nil)[:b.aead.NonceSize()]
	return version + base64.RawStdEncoding.EncodeToString(b.aead.Seal(nonce, nonce, []byte(value), []byte(place)))
}

// errForeign is all that is said of what cannot be opened.
var errForeign = errors.New("it was sealed by another server's key, or for another place")

// Open gives a value back.
func (b *Box) Open(place, text string) (string, error) {
	rest, ok := strings.CutPrefix(text, version)
	raw, err := base64.RawStdEncoding.DecodeString(rest)
	if !ok || err != nil || len(raw) < b.aead.NonceSize() {
		return "", errForeign
	}
	nonce, sealed := raw[:b.aead.NonceSize()], raw[b.aead.NonceSize():]
	value, err := b.aead.Open(nil, nonce, sealed, []byte(place))
	if err != nil {
		return "", errForeign
	}
	return string(value), nil
}

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

// Box seals with a server's newest secret, and opens what any of them has sealed.
type Box struct {
	secrets func() [][]byte // the newest first
}

// New makes a Box from a server's secrets, the newest first.
func New(secrets func() [][]byte) *Box { return &Box{secrets} }

// lock is what one secret makes.
type lock struct {
	aead    cipher.AEAD
	numbers []byte // key of the nonces
}

func lockOf(secret []byte) *lock {
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
	return &lock{aead: aead, numbers: derive("nonce")}
}

// Place is where alone the value under a key of a secret opens.
func Place(tenant, name, key string) string { return tenant + "/" + name + "/" + key }

const version = "v1:"

// Seal seals a value for one place, where alone it can be opened. One value of one place
// always becomes the same text: who applies it again changes nothing.
func (b *Box) Seal(place, value string) string {
	l := lockOf(b.secrets()[0])
	h := hmac.New(sha256.New, l.numbers)
	h.Write([]byte(place + "\x00" + value))
	nonce := h.Sum(nil)[:l.aead.NonceSize()]
	return version + base64.RawStdEncoding.EncodeToString(l.aead.Seal(nonce, nonce, []byte(value), []byte(place)))
}

// errForeign is all that is said of what cannot be opened.
var errForeign = errors.New("it was sealed by another server's key, or for another place")

// Open gives a value back.
func (b *Box) Open(place, text string) (value string, err error) {
	for _, secret := range b.secrets() {
		if value, err = lockOf(secret).open(place, text); err == nil {
			return value, nil
		}
	}
	return "", err
}

func (l *lock) open(place, text string) (string, error) {
	rest, ok := strings.CutPrefix(text, version)
	raw, err := base64.RawStdEncoding.DecodeString(rest)
	if !ok || err != nil || len(raw) < l.aead.NonceSize() {
		return "", errForeign
	}
	nonce, sealed := raw[:l.aead.NonceSize()], raw[l.aead.NonceSize():]
	value, err := l.aead.Open(nil, nonce, sealed, []byte(place))
	if err != nil {
		return "", errForeign
	}
	return string(value), nil
}

// Again seals a value with the newest secret that an older one has sealed.
func (b *Box) Again(place, text string) (string, error) {
	value, err := b.Open(place, text)
	if err != nil {
		return "", err
	}
	return b.Seal(place, value), nil
}

package onpath

import (
	"regexp"
	"strings"
)

// Secret holds values that only instances of its tenant read. The server seals them as they
// come: what is stored, shown, compared and logged is sealed, and only that.
type Secret struct {
	TypeMeta
	Metadata Metadata   `json:"metadata"`
	Spec     SecretSpec `json:"spec"`
}

// SecretSpec has the values by key.
type SecretSpec struct {
	// Data is what is written; it is sealed and never shown again.
	Data map[string]string `json:"data,omitempty"`
	// Sealed is what the server makes of Data. It opens for this Secret alone, by the
	// server's own key.
	Sealed map[string]string `json:"sealed,omitempty"`
}

// Bounds of secrets.
const (
	MaxSecretBytes = 64 << 10 // of all values of a Secret
	MaxSecretKeys  = 64
)

// SecretsFolder is where a container finds the secrets that its function names, in a file
// system in memory of its own.
const SecretsFolder = "/run/secrets"

var secretKey = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$`)

// SecretKey names a value: SECRET/KEY, of the tenant whose instance it is.
type SecretKey string

// Split gives the name of the Secret and the key in it.
func (k SecretKey) Split() (secret, key string) {
	secret, key, _ = strings.Cut(string(k), "/")
	return secret, key
}

// Meta implements Object.
func (s *Secret) Meta() *Metadata { return &s.Metadata }

// ObjectKind implements Object.
func (s *Secret) ObjectKind() Kind { return KindSecret }

// Validate implements Object. What it says never has a value in it.
func (s *Secret) Validate() error {
	v := begin(s, &s.TypeMeta)
	for _, at := range []struct {
		field string
		of    map[string]string
	}{{"spec.data", s.Spec.Data}, {"spec.sealed", s.Spec.Sealed}} {
		for _, k := range sortedKeys(at.of) {
			if !secretKey.MatchString(k) {
				v.add(key(at.field, k), "", "%s is no key: 1 to 63 letters, digits and -_., none of -. first", quote(k))
			}
		}
	}
	switch n := len(s.Spec.Data) + len(s.Spec.Sealed); {
	case n == 0:
		v.add("spec.data", "write {password: …}", "is missing")
	case n > MaxSecretKeys:
		v.add("spec.data", "write several secrets", "%d keys are too many; at most %d", n, MaxSecretKeys)
	case s.Size() > MaxSecretBytes:
		v.add("spec.data", "write several secrets", "has more than %d bytes", MaxSecretBytes)
	}
	return v.err()
}

// secrets checks the files of a container that are secrets.
func (v *validation) secrets(at string, list map[string]SecretKey) {
	if len(list) > MaxSecretKeys {
		v.add(at, "", "%d secrets are too many; at most %d", len(list), MaxSecretKeys)
		return
	}
	for _, file := range sortedKeys(list) {
		if !secretKey.MatchString(file) {
			v.add(key(at, file), "write a name such as db.password", "%s is not the name of a file in %s", quote(file), SecretsFolder)
		}
		if secret, k := list[file].Split(); !isName(secret) || !secretKey.MatchString(k) {
			v.add(key(at, file), "write SECRET/KEY, such as db/password", "%s names no value of a secret", quote(string(list[file])))
		}
	}
}

// Size is how many bytes the values have, sealed or not.
func (s *Secret) Size() (n int) {
	for _, value := range s.Spec.Data {
		n += len(value)
	}
	for _, text := range s.Spec.Sealed {
		n += max(len(text)*3/4-sealedMore, 0)
	}
	return n
}

// sealedMore is about what sealing adds to a value, in bytes.
const sealedMore = 30

package wire

// Secrets are the contents of an instance's files that are secrets, by name.
type Secrets struct {
	Files map[string][]byte `json:"files"`
}

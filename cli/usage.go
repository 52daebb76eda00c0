package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/onpath/onpath"
)

// wrongFlag says what is wrong with a flag in the words of the other messages.
func wrongFlag(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var lacking *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		if words := c.Flags().Args(); c.HasAvailableSubCommands() && len(words) > 0 {
			return noCommand(c, words) // the flag may be one of the command that was meant
		}
		name := unknown.GetSpecifiedName()
		given, hint := "-"+name, ""
		long := unknown.GetSpecifiedShortnames() == ""
		if long {
			given = "--" + name
		}
		if why := cmp.Or(flagsElsewhere[c.Name()+" "+given], flagsElsewhere[given]); why != "" {
			return badUsage("%s has no flag %s; %s", c.CommandPath(), given, why)
		}
		if long {
			if w := onpath.Nearest(name, flagNames(c)); w != "" {
				hint = "did you mean --" + w + "? "
			}
		}
		return badUsage("%s has no flag %s; %ssee %s --help", c.CommandPath(), given, hint, c.CommandPath())
	case errors.As(err, &lacking):
		return badUsage("--%s needs a value; see %s --help", lacking.GetFlag().Name, c.CommandPath())
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		if want := valueOf[f.Value.Type()]; want != "" {
			return badUsage("--%s %s: that is not %s; see %s --help", f.Name, invalid.GetValue(), want, c.CommandPath())
		}
	}
	return badUsage("%w; see %s --help", err, c.CommandPath())
}

// valueOf says what the values of a flag's type are.
var valueOf = map[string]string{
	"duration": "a time such as 500ms, 60s or 2h", "int": "a whole number", "int64": "a whole number", "uint64": "a whole number",
	"uint16":  "a number from 0 to 65535",
	"float64": "a number", "bool": "true or false",
}

func flagNames(c *cobra.Command) (names []string) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// What cobra says of the number of arguments.
var (
	tooFew  = regexp.MustCompile(`^requires at least (\d+) arg\(s\), only received (\d+)`)
	tooMany = regexp.MustCompile(`^accepts at most (\d+) arg\(s\), received (\d+)`)
	another = regexp.MustCompile(`^accepts (\d+) arg\(s\), received (\d+)`)
	between = regexp.MustCompile(`^accepts between (\d+) and (\d+) arg\(s\), received (\d+)`)
	none    = regexp.MustCompile(`^unknown command ("[^"]*") for`)
	missing = regexp.MustCompile(`"([^"]+)"`)
)

// wrongArgs says that there are too few arguments or too many, and how the
// command is used.
func wrongArgs(c *cobra.Command, err error) error {
	text := strings.TrimSuffix(err.Error(), "\n")
	if m := tooFew.FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("%s needs %s or more, and got %s", c.CommandPath(), arguments(m[1]), m[2])
	} else if m := tooMany.FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("%s takes %s at most, and got %s", c.CommandPath(), arguments(m[1]), m[2])
	} else if m := another.FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("%s takes %s, and got %s", c.CommandPath(), arguments(m[1]), m[2])
	} else if m := between.FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("%s takes %s to %s, and got %s", c.CommandPath(), m[1], arguments(m[2]), m[3])
	} else if m := none.FindStringSubmatch(text); m != nil && c.HasAvailableSubCommands() {
		return noCommand(c, []string{strings.Trim(m[1], `"`)})
	} else if m != nil {
		text = fmt.Sprintf("%s takes no argument such as %s", c.CommandPath(), m[1])
		if name := strings.Trim(m[1], `"`); c.Flags().Lookup("file") != nil {
			text += "; write -f before a file: -f " + name
		}
	}
	return badUsage("%s; usage: %s", text, c.UseLine())
}

func arguments(n string) string {
	if n == "1" {
		return "1 argument"
	}
	return n + " arguments"
}

// missingFlags names the flags that must be given.
func missingFlags(c *cobra.Command, err error) error {
	var names []string
	for _, m := range missing.FindAllStringSubmatch(err.Error(), -1) {
		names = append(names, "--"+m[1])
	}
	return badUsage("%s needs %s; usage: %s", c.CommandPath(), strings.Join(names, " and "), c.UseLine())
}

// noFile says in words that a file which was named cannot be read.
func noFile(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return badUsage("%s: there is no such file; correct the name", path)
	case errors.Is(err, fs.ErrPermission):
		return &onpath.Error{Code: onpath.CodeForbidden, Message: path + ": you may not read it", Cause: err,
			Remedy: "run as root, or change its permissions"}
	}
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	return badUsage("%s: %w", path, err)
}

// canWrite refuses a file that cannot be written before the work whose results it
// is for. What is there stays as it is.
func canWrite(flag, path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil // to open a pipe waits for who reads it
	}
	_, err := os.Lstat(path)
	absent := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return unwritable(flag, path, err)
	}
	err = f.Close()
	if absent {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// unwritable says in words why a file cannot be written.
func unwritable(flag, path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return badUsage("%s %s: there is no folder %s; make it, or name another file", flag, path, filepath.Dir(path))
	case errors.Is(err, syscall.EISDIR):
		return badUsage("%s %s: that is a folder; name a file in it", flag, path)
	case errors.Is(err, fs.ErrPermission):
		return &onpath.Error{Code: onpath.CodeForbidden, Message: flag + " " + path + ": you may not write it", Cause: err,
			Remedy: "run as root, or name another file"}
	}
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	return badUsage("%s %s: %w; name another file", flag, path, err)
}

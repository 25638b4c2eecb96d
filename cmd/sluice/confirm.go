package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// confirm asks the person at the terminal. An error means no.
func confirm(cmd *cobra.Command, question string) error {
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s Type yes: ", question)
	answers := make(chan string, 1)
	go func() { // a terminal can't be told to give up a read: it outlives a command that is told to end
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		answers <- strings.TrimSpace(line)
	}()
	select {
	case answer := <-answers:
		if answer == "yes" {
			return nil
		}
		return errors.New("the answer isn't yes: nothing was changed")
	case <-cmd.Context().Done():
		_, _ = fmt.Fprintln(cmd.ErrOrStderr())
		return errors.New("nothing was changed")
	}
}

package main

import (
	"github.com/spf13/cobra"

	"sluice/limiter"
)

func newPauseCommand() *cobra.Command {
	return newBrakeCommand(true, &cobra.Command{
		Use:   "pause PLACE | --all",
		Short: "Let nothing pass, of a key, a tier, a pattern or at all",
		Long: `Let nothing pass until 'sluice resume', in every worker within a second; pushes that are under way end. Events wait in the
source and in their lanes, and nothing is lost: MAX_WAIT doesn't run while they are paused. Limits are kept for later. Who
paused what, when and why is in 'sluice limits history'.

` + placeHelp,
		Example: "  sluice pause --all --comment 'receiver is on fire'\n  sluice pause alice\n  sluice pause tier:free",
	})
}

func newResumeCommand() *cobra.Command {
	return newBrakeCommand(false, &cobra.Command{
		Use:     "resume PLACE | --all",
		Short:   "Let pass again what was paused",
		Long:    "Let pass again what 'sluice pause' has paused, at its limits. --all releases the brake; what was paused beside it stays so.",
		Example: "  sluice resume --all\n  sluice resume alice",
	})
}

// newBrakeCommand completes pause and resume.
func newBrakeCommand(pause bool, cmd *cobra.Command) *cobra.Command {
	var (
		c   ruleChange
		all bool
	)
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.ValidArgsFunction = completePlaces
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all != (len(args) == 0) {
			return usagef("name what to %s, or --all for everything", cmd.Name())
		}
		place := limiter.Place{Source: limiter.SourceAll}
		if !all {
			var err error
			if place, err = placeArg(args[0]); err != nil {
				return err
			}
			if place.Source == limiter.SourceAll {
				return usagef("write --all for everything, or key:all for the key %q", args[0])
			}
		}
		return c.run(cmd, place, func(r limiter.Rule) limiter.Rule {
			r.Paused = pause
			return r
		})
	}
	c.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "everything: the brake")
	return cmd
}

(* Products of VLA's Jacobians: they grow at most polynomially in the number of tokens. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.
From Linattest Require Import forms penalty energy plane sequence certificate determinant.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* S J_1 ... J_T, a J of each token: the state without values *)
Fixpoint product (R : realFieldType) m d (S : 'M[R]_(m, d)) (k a : nat -> 'cV[R]_d) T :=
  if T is T'.+1 then product S k a T' *m jacobian (k T') (a T') else S.

Section Products.
Variables (R : realFieldType) (m d : nat) (lam0 : R) (u k : nat -> 'cV[R]_d) (n : nat -> R) (S : 'M[R]_(m, d)).
Hypothesis positive : 0 < lam0.
Hypothesis sizes : forall t, 0 < n t.
Local Notation M := (penalty lam0 u).
Local Notation a := (gains lam0 u k n).
Hypothesis cosines : forall t, dot (a t) (k t) <= 2%:R.

Lemma lyapunov_product T : energy (M T) (product S k a T) <= (\prod_(t < T) (1 + growth lam0 u t)) * energy (M 0) S.
Proof.
elim: T => [|T IH]; first by rewrite big_ord0 mul1r.
have := lyapunov_step (product S k a T) (u := u T) (k := k T)
  (penalty_symmetric lam0 u T) (penalty_pd u positive T) (sizes T).
rewrite /= -penaltyS => /(_ (cosines T)) /le_trans; apply.
rewrite big_ord_recr /= [_ * (1 + growth _ _ T)]mulrC -mulrA -/(growth lam0 u T).
by rewrite ler_pmul2l // ltr_paddr ?growth_ge0 ?ltr01.
Qed.

(* V_T <= V_0 det M_T / det M_0 *)
Theorem lyapunov_determinant T :
  energy (M T) (product S k a T) * \det (M 0) <= \det (M T) * energy (M 0) S.
Proof.
rewrite -(growth_is_determinant u positive T) mulrAC ler_wpmul2r ?lyapunov_product //.
have /andP [det0 _] := hadamard (penalty_symmetric lam0 u 0) (penalty_pd u positive 0).
exact: ltW.
Qed.

(* The determinants' ratio, by Hadamard and the inequality of the means. *)
Lemma growth_bound T :
  \prod_(t < T) (1 + growth lam0 u t) <= (1 + (\sum_(t < T) dot (u t) (u t)) / (lam0 * d%:R)) ^+ d.
Proof.
pose X := lam0^-1 *: \sum_(t < T) u t *m (u t)^T.
have lam0_neq0 : lam0 != 0 by rewrite gt_eqF.
have whole : M T = lam0 *: (1%:M + X).
  by rewrite /penalty /X scalerDr scalemx1 scalerA divff // scale1r.
have := growth_is_determinant u positive T.
rewrite whole penalty0 detZ -scalemx1 detZ det1 mulr1 mulrC => /mulIf ->; last by rewrite expf_neq0.
have outer t : symmetric (u t *m (u t)^T) by exact: symmetric_outer.
have symX : symmetric X.
  rewrite /symmetric /X linearZ /= linear_sum /=; congr (_ *: _); apply: eq_bigr => t _; exact: outer.
have psdX : psd X.
  move=> x; rewrite /X form_scale mulr_ge0 ?invr_ge0 ?(ltW positive) //.
  elim/big_ind: _ => [|A B hA hB|t _]; first by rewrite /form mulmx0 mul0mx mxE.
    by rewrite form_add addr_ge0.
  exact: psd_outer.
apply: le_trans (det_one_plus symX psdX) _.
have diagonal i : 0 <= 1 + X i i by rewrite -diagonal_form addr_ge0 ?ler01 ?psdX.
have [agm _] := @leif_AGM R [finType of 'I_d] predT (fun i => 1 + X i i) (fun i _ => diagonal i). apply: le_trans agm _.
rewrite card_ord.
have [d0 | dpos] := posnP d; first by rewrite [X in _ ^+ X]d0 [X in _ <= _ ^+ X]d0 !expr0.
have trace : \sum_i X i i = lam0^-1 * \sum_(t < T) dot (u t) (u t).
  rewrite -[LHS]/(\tr X) /X linearZ /= linear_sum /=; congr (_ * _); apply: eq_bigr => t _.
  by rewrite mxtrace_mulC dotE mxtrace_scalar mulr1n.
rewrite big_split /= trace sumr_const card_ord mulrDl divff ?pnatr_eq0 -?lt0n //.
by rewrite invfM mulrCA mulrA.
Qed.

(* |S J_1 ... J_T|_F^2 <= (1 + sum |u_t|^2 / (d lam0))^d |S|_F^2, for every S: a bound of the spectral norm. *)
Lemma jacobians_bounded T :
  energy 1%:M (product S k a T)
  <= (1 + (\sum_(t < T) dot (u t) (u t)) / (lam0 * d%:R)) ^+ d * energy 1%:M S.
Proof.
rewrite -(ler_pmul2l positive); apply: le_trans (_ : energy (M T) (product S k a T) <= _).
  rewrite /energy !inner_rows mulr_sumr ler_sum // => i _; by rewrite form1 penalty_floor.
apply: le_trans (lyapunov_product T) _; rewrite penalty0 -scalemx1 energy_scale mulrCA ler_pmul2l //.
by rewrite ler_wpmul2r ?growth_bound // energy_ge0 //; apply/pd_psd/pd_scalar/ltr01.
Qed.
End Products.

(* The same for VLA itself: keys of length 1 and normalised gains, nothing else assumed. *)
Theorem vla_jacobians_bounded (R : rcfType) m d (lam0 : R) (u k : nat -> 'cV[R]_d) (S : 'M[R]_(m, d)) T :
  0 < lam0 -> (forall t, dot (k t) (k t) = 1) ->
  energy 1%:M (product S k (gains lam0 u k (vla_size lam0 u k)) T)
  <= (1 + (\sum_(t < T) dot (u t) (u t)) / (lam0 * d%:R)) ^+ d * energy 1%:M S.
Proof. by move=> positive unit; apply: jacobians_bounded => // t; [apply: vla_size_gt0 | apply: vla_cosine]. Qed.

(* Twin: the energy never exceeds its start. *)
Theorem twin_lyapunov_determinant : forall R : realFieldType, ~ (forall m d lam0 (u k : nat -> 'cV[R]_d) n
    (S : 'M[R]_(m, d)),
  0 < lam0 -> (forall t, 0 < n t) -> (forall t, dot (gains lam0 u k n t) (k t) <= 2%:R) ->
  forall T, energy (penalty lam0 u T) (product S k (gains lam0 u k n) T) <= energy (penalty lam0 u 0) S).
Proof.
move=> R /(_ 1%N 1%N 1 (fun=> 1%:M) (fun=> 0) (fun=> 1) 1%:M ltr01 (fun=> ltr01)) h.
have {h} : energy (penalty 1 (fun=> 1%:M) 1) (1%:M : 'M[R]_1) <= energy (penalty 1 (fun=> 1%:M) 0) (1%:M : 'M[R]_1).
  have := h _ 1%N; rewrite /= /jacobian mul0mx subr0 mulmx1; apply=> t.
  by rewrite /dot mulmx0 mxE ler0n.
rewrite penaltyS penalty0 tr_scalar_mx -scalar_mxM -raddfD !one_energy expr1n !mul1r.
by rewrite ger_addl ler10.
Qed.

(* Twin: products of VLA's Jacobians do not expand (its proposition 2 as published). The example: lam0 = 1,
   u = (3/2, 1), k = (1, 0), so that A k = (8, -6) / 17 and a = (4/5, -3/5); the row (5, 15) goes to (1, 18). *)
Theorem twin_vla_jacobians_bounded : forall R : rcfType, ~ (forall m d (lam0 : R) (u k : nat -> 'cV[R]_d)
    (S : 'M[R]_(m, d)) T, 0 < lam0 -> (forall t, dot (k t) (k t) = 1) ->
  energy 1%:M (product S k (gains lam0 u k (vla_size lam0 u k)) T) <= energy 1%:M S).
Proof.
move=> R; pose u : 'cV[R]_2 := vec (3%:R / 2%:R) 1; pose w : 'cV[R]_2 := vec (8%:R / 17%:R) (- (6%:R / 17%:R)).
move=> /(_ 1%N 2%N 1 (fun=> u) (fun=> start R) (vec 5%:R 15%:R)^T 1%N ltr01) h.
have unit : dot (start R) (start R) = 1 by rewrite dot_vec mulr1 mulr0 addr0.
have posM := penalty_pd (fun=> u) ltr01 1.
have image : invmx (penalty 1 (fun=> u) 1) *m start R = w.
  suff e : start R = penalty 1 (fun=> u) 1 *m w by rewrite [in LHS]e mulKmx // pd_unit.
  rewrite penaltyS penalty0 mulmxDl mul1mx -mulmxA dotE mul_mx_scalar dot_vec vecZ vecD.
  by congr (vec _ _); field.
have size : length w = 10%:R / 17%:R.
  rewrite /length dot_vec; set square := _ + _.
  have -> : square = (10%:R / 17%:R) ^+ 2 by rewrite /square; field.
  by rewrite sqrtr_sqr ger0_norm // divr_ge0 ?ler0n.
have {h} := h (fun=> unit); rewrite /= /gains /gain /vla_size image size vecZ row_jacobian dot_vec vecZ vecD.
rewrite !energy_row !form1 !dot_vec.
set left := _ + _; set right := _ + _.
have -> : left = 325%:R by rewrite /left; field.
have -> : right = 250%:R by rewrite /right; ring.
by rewrite ler_nat.
Qed.
